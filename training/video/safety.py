"""What keeps a long run from being lost: a compiled step that is checked, and a way back."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 0.05  # of bfloat16 sums in another order; a broken kernel is far beyond it

Step = Callable[..., Any]


def checked(step: Step, trial: Callable[[Step], list[float]], wanted: bool) -> Step:
    """The step compiled, or as it is where compiling fails or changes what a trial gives."""
    if not wanted:
        return step
    expected = trial(step)
    try:
        compiled = torch.compile(step)
        found = trial(compiled)
    except Exception as error:  # whatever it was: the plain step is slower, not wrong
        print(f"not compiled: {type(error).__name__}: {str(error).strip()[:400]}", flush=True)
        torch._dynamo.reset()
        return step
    print(f"compiled: {found}, plain: {expected}", flush=True)
    if not alike(found, expected):
        print("not compiled: the compiled step gives other numbers", flush=True)
        return step
    return compiled


def alike(found: Sequence[float], expected: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether numbers agree to this share of their size; what is not finite agrees with nothing."""
    pairs = zip(found, expected, strict=True)
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-6) for a, b in pairs)


def gradient_norm(model: nn.Module) -> float:
    """The norm of all gradients, which are then let go."""
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return float(torch.stack(norms).norm())


class LastGood:
    """Copies of modules and optimizers, to go back to when a loss is not finite."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.copies = self._copies()

    def _copies(self) -> list[Any]:
        return [copy.deepcopy(part.state_dict()) for part in self.parts]

    def settle(self, losses: Tensor) -> bool:
        """Keep the parts as they are where these losses are finite, or else go back; which."""
        good = bool(torch.isfinite(losses).all())
        if good:
            self.copies = self._copies()
            return True
        print("a loss is not finite: back to the last good weights", flush=True)
        for part, kept in zip(self.parts, self.copies, strict=True):
            part.load_state_dict(copy.deepcopy(kept))
        return False
