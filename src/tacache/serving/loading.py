"""A model by its name with all that a worker needs: small enough to be sent to other processes."""

import gc
from dataclasses import dataclass, field
from typing import Any

from tacache.diffusers.loading import Loading, load_pipeline
from tacache.host.wish import SPEEDUP
from tacache.models import EMBEDDED, frame_rate
from tacache.serving.budgets import Budgets
from tacache.serving.wanted import Limits
from tacache.serving.worker import Worker


@dataclass(frozen=True)
class ModelSource:
    """How to load a model and to answer requests with it."""

    model: str
    load: dict[str, Any] = field(default_factory=dict)  # fields of `Loading`
    call: dict[str, Any] = field(default_factory=dict)
    speedup: float = SPEEDUP
    max_rows: int = 16
    use_graphs: bool = True
    limits: Limits = field(default_factory=Limits)
    drain_s: float = 60.0

    def worker(self) -> Worker:
        """A worker with the model, which has made its first evaluations."""
        pipe = load_pipeline(self.model, Loading(**self.load))
        if self.model in EMBEDDED and pipe.device.type == "cpu":
            import torch

            torch.set_num_threads(1)  # layers this small gain little from more
        worker = Worker(
            pipe,
            self.call,
            limits=self.limits,
            budgets=Budgets(speedup=self.speedup),
            max_rows=self.max_rows,
            use_graphs=self.use_graphs,
            fps=frame_rate(self.model),
        )
        worker.warm_up()
        settle()
        return worker


def settle() -> None:
    """Leave all that is loaded out of garbage collection, for the life of the process.

    A finished request is freed by the collector. Among the millions of objects of a loaded model
    it would seldom look, and memory would grow meanwhile.
    """
    gc.collect()
    gc.freeze()
