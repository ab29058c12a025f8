"""Samples drawn by BAGEL: by full steps or a plan."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tacache.bagel import applied, calibrate
from tacache.bagel.generation import Request, generate
from tacache.bagel.making import Job as BagelJob
from tacache.bagel.making import quiet
from tacache.errors import HostError
from tacache.lab.bench.jobs import Job
from tacache.lab.bench.judging import FULL
from tacache.lab.bench.methods import Followed
from tacache.lab.bench.runner import Bench
from tacache.lab.bench.seam import Subject
from tacache.lab.export.drawing import Drawing, anchor_times
from tacache.lab.export.orders import Order
from tacache.plan import Plan
from tacache.profile import Origin


@dataclass(frozen=True)
class Facts:
    """What a record says of the model, read off one full-step run."""

    host: Origin
    times: tuple[float, ...]
    device: torch.device

    @property
    def steps(self) -> int:
        """N, the number of full steps."""
        return len(self.times) - 1


@dataclass(frozen=True)
class BagelStudio:
    """BAGEL's inferencer."""

    inferencer: Any

    def caller(self, job: Job) -> Facts:
        """The facts of its calls; their run pays the costs that come only once."""
        run = calibrate(self.inferencer, [job.subjects[0].prompt], **job.call)
        host = run.host.model_copy(update={"prompts_sha256": None})
        return Facts(host, run.times, next(self.inferencer.model.parameters()).device)

    @contextmanager
    def drawing(self, bench: Bench, order: Order) -> Iterator[Drawing]:
        """By a plan where one is given, else by full steps."""
        if order.plan is None and order.method != FULL:
            raise HostError(f"bagel draws by full steps or a --plan, not by {order.method}")
        plan = None if order.plan is None else order.plan[1]
        request = Request(None, dict(order.call))
        following = nullcontext() if plan is None else applied(self.inferencer, plan)
        with quiet(self.inferencer.model), following as followed:

            def draw(subject: Subject, draft: Path) -> tuple[Path, dict[str, Any]]:
                output = generate(self.inferencer, BagelJob(*subject), request, draft)
                ran = Plan.full(bench.caller.times) if followed is None else followed.run_plan
                return Path(output.file), {
                    "seconds": output.seconds,
                    "evaluated": anchor_times(ran),
                }

            shared = {} if plan is None else {"settings": Followed().shown(plan)}
            evaluations = bench.caller.steps if plan is None else plan.evaluations
            yield Drawing(order.name, evaluations, shared, draw)
