"""One line for BAGEL: each of its runs follows a plan that is chosen when it begins."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tacache.bagel.held_call import BagelEuler, BagelTrajectory
from tacache.bagel.host import Evaluate, Following, model_of, put, replaced
from tacache.bagel.inferencer import BagelHost
from tacache.bagel.matching import check_host, fit_to_run, logger
from tacache.bagel.runs import BagelRun, describe
from tacache.errors import TACacheError
from tacache.hosts import Call, Host, Pixels
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.hosts.choosing import Chooser
from tacache.hosts.learning import RecordedSample, RunRecord
from tacache.prompts import Sample
from tacache.storage.signature import RunSignature
from tacache.velocity import check_full_run

INFERENCE = "interleave_inference"  # the inferencer's method that prompts go through
# of its arguments, those that are no settings of a picture
NO_SETTINGS = {"self", "input_lists", "think", "understanding_output"}
PLAIN = bool | int | float | str


def accelerate(model: Any, **keywords: Any) -> None:
    """Make the runs of `model` (a Bagel or its inferencer) faster; call it as before.

    Options and what happens at each run are those of `tacache.diffusers.accelerate`. Calls of an
    InterleaveInferencer with a prompt are learned from. `remove(model)` undoes it.

    Args:
        model: A Bagel or its inferencer.
        keywords: The options, such as `speedup=4`, `min_psnr=35`, `learn=8` or `plan`.

    Raises:
        HostError: The model is no BAGEL, or the plan is for another model.
        PlanError: An option makes no sense.

    """
    bagel, options = model_of(model), AccelerateOptions(**keywords)
    if options.own_plan is not None:
        check_host(bagel, options.own_plan)
    put(bagel, Accelerating(bagel, Chooser(options, logger)))


class Accelerating(Following):
    """Chooses a plan for each run of a model; `run_plan` is None in and after a full run."""

    def __init__(self, model: Any, chooser: Chooser) -> None:
        super().__init__(None)
        self._model, self.chooser = model, chooser
        self._record: RunRecord | None = None

    def start(self, run: BagelRun) -> None:
        """Choose for this run."""
        origin = describe(self._model, run)
        if not run.alike:  # no plan of the store is for several sizes at once
            origin = origin.model_copy(update={"weights": None})
        self._setting = RunSignature(origin, run.times, run.breaks, len(run.times) - 1)
        chosen = self.chooser.choose(self._setting, InferencerSource(self._model, run))
        self._record, self._step = chosen.record, 0
        self.follow(run, chosen.plan and fit_to_run(chosen.plan, run))

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """Return that of the plan, or the model's own, recorded where it is learned from."""
        if self.run_plan is not None:
            return super().velocity(x, evaluate)
        v, step, self._step = evaluate(), self._step, self._step + 1
        if self._step == self._setting.steps:
            for part in (x, v):  # on two devices, maybe
                check_full_run(part)
        if self._record is not None:
            self._see(self._record, x, v, step)
        return v

    def leave(self) -> None:
        """Let another process go on learning."""
        self.chooser.close()

    def _see(self, record: RunRecord, x: Tensor, v: Tensor, step: int) -> None:
        """Record a full step; what goes wrong with that stops no run."""
        try:
            x_next = BagelEuler(self._setting.times).move(x, v.to(x.device), step, step + 1)
            record.see(x[None], v[None].to(x.device), x_next[None])
        except (TACacheError, OSError) as error:
            self._record = None
            self.chooser.give_up(self._setting, str(error))


class InferencerSource:
    """The inferencer's running call, for a fit to come (`tacache.hosts.choosing.Source`)."""

    def __init__(self, model: Any, run: BagelRun) -> None:
        self._model, self._run = model, run
        self._inferencer, self._arguments = inferencer_call(model)

    def refusal(self) -> str | None:
        """Return why calls like this one cannot be made again."""
        inputs = self._arguments.get("input_lists")
        if self._inferencer is None:
            return "it is not one of an InterleaveInferencer, so its prompt is not known"
        if len(self._run.lengths) != 1:
            return "it packs several images"
        if not (isinstance(inputs, list | tuple) and [type(part) for part in inputs] == [str]):
            return "it has other inputs than one prompt, and pictures are not kept"
        if self._arguments.get("think"):
            return "it thinks first, and would think something else the next time"
        return None

    def call_of(self, row: int, rows: int) -> dict[str, Any]:
        """Return the prompt, and the plain arguments of the inferencer."""
        (text,) = self._arguments["input_lists"]
        plain = {n: _plain(v) for n, v in self._arguments.items() if n not in NO_SETTINGS}
        return {"text": text, **{n: v for n, v in plain.items() if v is not None}}

    def host(self, samples: Sequence[RecordedSample]) -> tuple[Host, Call]:
        """Return the inferencer without a plan, called as it was for each sample."""
        return KeptPrompts(self._inferencer, samples), {}


class KeptPrompts(BagelHost):
    """An inferencer whose sample with seed i is that of the i-th kept call."""

    def __init__(self, inferencer: Any, samples: Sequence[RecordedSample]) -> None:
        super().__init__(inferencer)
        self.samples = samples

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[BagelTrajectory]:
        """Hold a kept call, from its own noise."""
        with super().open(*self._kept(sample, call), times) as run:
            run.noise = self.samples[sample.seed].noise.to(run.noise)
            yield run

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """Draw the picture of a kept call, from its own noise."""
        whole, noise = self.model.generate_image, self.samples[sample.seed].noise[0]

        def from_noise(*args: Any, **kwargs: Any) -> Any:
            drawn = kwargs.pop("packed_init_noises")
            return whole(*args, packed_init_noises=noise.to(drawn), **kwargs)

        with replaced(self.model, generate_image=from_noise):
            return super().draw(*self._kept(sample, call))

    def _kept(self, sample: Sample, call: Call) -> tuple[Sample, Call]:
        """Return a kept call with what a fit asks beside it, such as another number of steps."""
        kept = {**self.samples[sample.seed].call, **call}
        return Sample(kept.pop("text"), sample.seed), kept


def inferencer_call(model: Any) -> tuple[Any, dict[str, Any]]:
    """Return the inferencer whose call runs this model, and its arguments; (None, {}) if none."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == INFERENCE:
            names, _, _, values = inspect.getargvalues(frame)
            owner = values.get("self")
            if getattr(owner, "model", None) is model:
                return owner, {name: values[name] for name in names if name in values}
        frame = frame.f_back  # type: ignore[assignment]
    return None, {}


def _plain(value: Any) -> Any:
    """Return a value that a file can hold; None for anything else."""
    if isinstance(value, list | tuple):
        return list(value) if all(isinstance(part, PLAIN) for part in value) else None
    return value if isinstance(value, PLAIN) else None
