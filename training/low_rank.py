"""Changes of a model that are trained: all of its weights, or factors of low rank.

Both leave plain weights in the model, so one compiled graph serves them all: a step writes the
weights, runs the model, and takes the gradients of what is trained from those of the weights.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

BLOCKS = ("transformer_blocks.", "single_transformer_blocks.")


class Change(Protocol):
    """What the optimizer trains of a model."""

    trained: list[Tensor]

    def write(self) -> None:
        """Give the model the weights that the trained tensors stand for."""

    def take_gradients(self) -> None:
        """Turn the gradients of the model's weights into those of what is trained."""

    def save(self, path: Path) -> None:
        """Write what is trained, in half precision."""


class FullChange:
    """Every weight of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.trained: list[Tensor] = list(model.parameters())

    def write(self) -> None:
        """Do nothing: what is trained are the model's own weights."""

    def take_gradients(self) -> None:
        """Do nothing: the gradients are where they belong."""

    def save(self, path: Path) -> None:
        """Write the weights by the model's own names."""
        save_file(halved(self.model.state_dict()), path, metadata={"format": "pt"})


class LowRankChange:
    """A change W = W_0 + B A of every linear layer of the blocks, with r rows of A.

    It begins at the best approximation of rank r to a change that is known, by its singular values.
    """

    def __init__(self, model: nn.Module, known: dict[str, Tensor], rank: int) -> None:
        """Begin at the weights `known`, of which what is not a linear layer's is left out."""
        self.layers = linear_layers(model)
        self.base = {name: layer.weight.detach().clone() for name, layer in self.layers.items()}
        self.trained: list[Tensor] = []
        for name, weight in self.base.items():
            self.trained += best_factors(known[f"{name}.weight"] - weight, rank)
        self.write()

    @torch.no_grad()
    def write(self) -> None:
        """Add each product of factors to its layer's first weight."""
        for name, (down, up) in self.factors().items():
            torch.addmm(self.base[name], up, down, out=self.layers[name].weight.data)

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Apply the chain rule: dA = B^T dW and dB = dW A^T."""
        for name, (down, up) in self.factors().items():
            gradient = self.layers[name].weight.grad
            down.grad, up.grad = up.T @ gradient, gradient @ down.T

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return A and B of every layer."""
        return dict(
            zip(self.layers, zip(self.trained[::2], self.trained[1::2], strict=True), strict=True)
        )

    def save(self, path: Path) -> None:
        """Write the factors by the names that diffusers and peft read."""
        named = {}
        for name, (down, up) in self.factors().items():
            named[f"transformer.{name}.lora_A.weight"] = down
            named[f"transformer.{name}.lora_B.weight"] = up
        save_file(halved(named), path, metadata={"format": "pt"})


def linear_layers(model: nn.Module) -> dict[str, Any]:
    """Return the linear layers of the model's blocks by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.startswith(BLOCKS)
    }


def best_factors(change: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B of equal norms whose product is the best approximation of this rank."""
    left, values, right = torch.linalg.svd(change.detach().float(), full_matrices=False)
    roots = values[:rank].sqrt()
    down, up = roots[:, None] * right[:rank], left[:, :rank] * roots
    return down.contiguous().requires_grad_(), up.contiguous().requires_grad_()


def halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in half precision, as files hold them."""
    return {name: tensor.detach().half().cpu().contiguous() for name, tensor in tensors.items()}
