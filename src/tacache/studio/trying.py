"""One try: the accelerated picture first, the full-step one beside it, and how they compare."""

from typing import NamedTuple

from pydantic import JsonValue

from tacache.errors import HostError
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.studio.choices import Choice, Known, choose
from tacache.studio.drawing import FAST, FULL, Drawn, draw, draw_full, drift_of
from tacache.studio.jobs import Part, Watch
from tacache.studio.pictures import fidelity
from tacache.studio.rivals import RIVALS, Rivals

LONGEST_PROMPT = 1000  # characters
LARGEST_SEED = 2**31 - 1


class Wish(NamedTuple):
    """What somebody asks for."""

    prompt: str
    seed: int
    evaluations: int
    rule: str

    def checked(self) -> "Wish":
        """The same, if it can be drawn; a page may be sent anything."""
        if not self.prompt.strip():
            raise HostError("there is no prompt: write what shall be drawn")
        if len(self.prompt) > LONGEST_PROMPT:
            raise HostError(f"the prompt is longer than {LONGEST_PROMPT} characters: shorten it")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise HostError(f"the seed is a whole number from 0 to {LARGEST_SEED}")
        return self

    @property
    def sample(self) -> Sample:
        """The prompt with its seed."""
        return Sample(self.prompt.strip(), self.seed)


class Attempt(NamedTuple):
    """An accelerated picture or clip beside the full-step one."""

    wish: Wish
    plan: Plan | None  # None of a rival
    fast: Drawn
    full: Drawn
    psnr: float
    ssim: float
    drift: list[tuple[int, float]]

    @property
    def equivalent_steps(self) -> float | None:
        """How many Euler steps are as near to the flow, where the plan's certificate says."""
        certificate = None if self.plan is None else self.plan.certificate
        return None if certificate is None else certificate.equivalent_steps

    def settings(self, model: str) -> dict[str, JsonValue]:
        """What was made and how, as a file says it."""
        return {
            "model": model,
            **self.wish._asdict(),
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


def plan_for(known: Known, wish: Wish) -> Choice | None:
    """The plan of a wish; None where a rival decides by itself."""
    return None if wish.rule in RIVALS else choose(known, wish.rule, wish.evaluations)


def attempt(known: Known, rivals: Rivals, wish: Wish, watch: Watch) -> Attempt:
    """Draw a wish with acceleration, then by full steps unless that is known, and compare."""
    model, sample = known.model, wish.checked().sample
    chosen = plan_for(known, wish)
    with model.turn(watch):
        if chosen is None:
            fast = rivals.draw(wish.rule, wish.evaluations, sample, watch)
        else:
            fast = draw(model, sample, chosen.plan, watch)
    watch.tell(Part(FAST, fast))
    full = draw_full(model, sample, watch)
    watch.tell(Part(FULL, full))
    plan = None if chosen is None else chosen.plan
    found = fidelity(full.pixels, fast.pixels)
    return Attempt(wish, plan, fast, full, *found, drift_of(fast, full))
