"""A model by its name with all that a worker needs: small enough to be sent to other processes."""

import gc
from dataclasses import dataclass, field
from typing import Any

from tacache.diffusers.pipeline_loading import Loading, load_pipeline
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.models import frame_rate, shipped
from tacache.serving.budgets import Budgets
from tacache.serving.protocol import Limits
from tacache.serving.worker import Worker


@dataclass(frozen=True)
class ModelSource:
    """How to load a model and to answer requests with it."""

    model: str
    load: dict[str, Any] = field(default_factory=dict)  # fields of `Loading`
    call: dict[str, Any] = field(default_factory=dict)
    usual: AccelerateOptions | None = None  # of requests that do not say how fast
    max_rows: int = 16
    use_graphs: bool = True
    limits: Limits = field(default_factory=Limits)
    drain_s: float = 60.0

    def worker(self) -> Worker:
        """Return a worker with the model, which has made its first evaluations."""
        pipe = load_pipeline(self.model, Loading(**self.load))
        if self.model in shipped() and pipe.device.type == "cpu":
            import torch

            torch.set_num_threads(1)  # layers this small gain little from more
        worker = Worker(
            pipe,
            self.call,
            limits=self.limits,
            budgets=Budgets(usual=self.usual),
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
