"""Muon: momentum whose matrices are made orthogonal before they are added to the weights.

Every direction of a matrix then moves by the same amount, where Adam moves mostly along the few
large ones; in short runs that takes far fewer steps (Jordan et al., 2024). ``torch.optim.Muon``
takes matrices alone and works on one at a time; here kernels of convolutions count as matrices of
(outputs, all the rest), and those of one shape are worked on together, which keeps launches few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ROUNDS = 5
# Of the odd polynomial that takes singular values in (0, 1] near one within a few rounds.
QUINTIC = (3.4445, -4.7750, 2.0315)
SIZE_OF_ADAM = 0.2  # root mean square of an update of Adam, for which learning rates are known


class Muon(torch.optim.Optimizer):
    """For matrices and kernels; a learning rate means what it means to Adam."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(list(params), {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; gradients that are missing leave their weights as they are."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    alike[sides(weight)].append(weight)
            for weights in alike.values():
                self._move(weights, group["lr"], group["weight_decay"])

    def _move(self, weights: list[Tensor], rate: float, decay: float) -> None:
        """All weights of one shape."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        momenta = [self._momentum(weight) for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # as Nesterov has it
        updates = orthogonal(torch.stack([one.flatten(1) for one in ahead])).to(weights[0].dtype)
        scale = SIZE_OF_ADAM * max(updates.shape[-2:]) ** 0.5
        parts = [u.view(w.shape) for u, w in zip(updates, weights, strict=True)]
        torch._foreach_mul_(weights, 1 - rate * decay)
        torch._foreach_add_(weights, parts, alpha=-rate * scale)

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        kept: Tensor = state["momentum"]
        return kept


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: singular values end between 0.7 and 1.2."""
    a, b, c = QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def sides(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a weight as a matrix."""
    return weight.shape[0], weight[0].numel()


def is_matrix(weight: Tensor) -> bool:
    """Whether a weight maps numbers to numbers; gains and biases do not."""
    return weight.dim() >= 2 and min(sides(weight)) > 1


class Both:
    """Muon for the matrices within a model and AdamW for all the rest, used as one optimizer.

    ``apart`` has parts of the names of matrices that are Adam's as well: those at a model's ends,
    embeddings and tables.
    """

    def __init__(self, model: nn.Module, apart: Sequence[str], **adam: Any) -> None:
        named = list(model.named_parameters())
        inner = {n for n, p in named if is_matrix(p) and not any(one in n for one in apart)}
        muon = Muon([p for n, p in named if n in inner], weight_decay=adam.get("weight_decay", 0.0))
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            muon,
            torch.optim.AdamW([p for n, p in named if n not in inner], **adam),
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both, to set learning rates in."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """One step of each."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let all gradients go."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Momenta and moments."""
        return {str(n): part.state_dict() for n, part in enumerate(self.parts)}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """What ``state_dict`` gave; anything else is refused."""
        if set(kept) != {str(n) for n in range(len(self.parts))}:
            raise ValueError(
                "this state is of another optimizer: move it away to begin anew, or go on from an "
                "exported model with --start"
            )
        for n, part in enumerate(self.parts):
            part.load_state_dict(kept[str(n)])
