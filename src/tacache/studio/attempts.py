"""One try: the accelerated picture first, the full-step one beside it, and how they compare."""

from typing import NamedTuple

from pydantic import JsonValue

from tacache.errors import HostError
from tacache.fitting.quality_goal import QualityGoal
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.studio.choices import Known, PlanChoice, choose, choose_quality, rival_names
from tacache.studio.drawing import ACCELERATED, FULL_STEPS, Drawn, draw, draw_full, drift_of
from tacache.studio.pictures import fidelity
from tacache.studio.turns import Part, Watch

MAX_PROMPT_LENGTH = 1000  # characters
MAX_SEED = 2**31 - 1


class PictureOptions(NamedTuple):
    """What somebody asks for: a number of evaluations by a rule or, in its place, a quality."""

    prompt: str
    seed: int
    evaluations: int
    rule: str
    min_psnr: float | None = None
    like_steps: int | None = None

    def checked(self) -> "PictureOptions":
        """Return the same, if it can be drawn; a page may be sent anything."""
        if not self.prompt.strip():
            raise HostError("there is no prompt: write what shall be drawn")
        if len(self.prompt) > MAX_PROMPT_LENGTH:
            raise HostError(f"the prompt is longer than {MAX_PROMPT_LENGTH} characters: shorten it")
        if not 0 <= self.seed <= MAX_SEED:
            raise HostError(f"the seed is a whole number from 0 to {MAX_SEED}")
        return self

    @property
    def sample(self) -> Sample:
        """Return the prompt with its seed."""
        return Sample(self.prompt.strip(), self.seed)

    @property
    def goal(self) -> QualityGoal | None:
        """Return the quality that is asked for; None where evaluations are."""
        return QualityGoal.of(self.like_steps, self.min_psnr)


class Attempt(NamedTuple):
    """An accelerated picture or clip beside the full-step one."""

    options: PictureOptions
    steps: int
    plan: Plan | None  # None of a rival
    fast: Drawn
    full: Drawn
    psnr: float
    ssim: float
    drift: list[tuple[int, float]]

    @property
    def equivalent_steps(self) -> float | None:
        """Return how many Euler steps are as near to the flow, where the certificate says."""
        certificate = None if self.plan is None else self.plan.certificate
        return None if certificate is None else certificate.equivalent_steps

    def settings(self, model: str) -> dict[str, JsonValue]:
        """Return what was made and how, as a file says it."""
        return {
            "model": model,
            **self.options._asdict(),
            **({} if self.options.goal is None else {"evaluations": None, "rule": None}),
            "steps": self.steps,
            "seconds": round(self.fast.seconds, 4),
            "evaluated": self.fast.evaluations,
            "full_seconds": round(self.full.seconds, 4),
            "full_evaluations": self.full.evaluations,
            "psnr": self.psnr,
            "ssim": self.ssim,
            "equivalent_steps": self.equivalent_steps,
            "anchors": None if self.plan is None else list(self.plan.anchors),
            "plan": None if self.plan is None else self.plan.as_fields(),
        }


def plan_for(known: Known, options: PictureOptions) -> PlanChoice | None:
    """Return the plan for what is asked; None where a rival decides by itself."""
    if options.goal is not None:
        return choose_quality(known, options.goal)
    if options.rule in rival_names():
        return None
    return choose(known, options.rule, options.evaluations)


def attempt(known: Known, options: PictureOptions, watch: Watch) -> Attempt:
    """Draw a picture with acceleration, then by full steps unless that is known, and compare."""
    model, sample = known.model, options.checked().sample
    chosen = plan_for(known, options)
    with model.turn(watch):
        if chosen is None:
            assert known.rivals is not None  # the rule is a name of theirs
            fast = known.rivals.draw(options.rule, options.evaluations, sample, watch)
        else:
            fast = draw(model, sample, chosen.plan, watch)
    watch.tell(Part(ACCELERATED, fast))
    full = draw_full(model, sample, watch)
    watch.tell(Part(FULL_STEPS, full))
    plan = None if chosen is None else chosen.plan
    psnr, ssim = fidelity(full.pixels, fast.pixels)
    return Attempt(options, model.steps, plan, fast, full, psnr, ssim, drift_of(fast, full))
