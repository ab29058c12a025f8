"""benchmarks/graphed.py: what is replayed from a graph, and what is left to the model."""

from typing import Any

import pytest
import torch
from benchmarks import graphed
from torch import Tensor, nn


def model_class(replayed: list[dict[str, Tensor]], monkeypatch) -> type[nn.Module]:
    """A model whose graphs answer with zeros; they note what they are called with."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(
            self,
            x: Tensor,
            t: Tensor,
            guidance: Any = None,
            mask: Any = None,
            return_dict: bool = True,
        ) -> Any:
            out = self.layer(x) + t + 1
            return {"sample": out} if return_dict else (out,)

    def noted(self: graphed.Replays, model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        replayed.append(given)
        return torch.zeros_like(given["x"])

    monkeypatch.setattr(graphed.Replays, "__call__", noted)
    graphed.replay(Model, "forward", ("x", "t", "guidance"))
    return Model


@pytest.fixture
def replayed() -> list[dict[str, Tensor]]:
    return []


@pytest.fixture
def model(replayed, monkeypatch) -> nn.Module:
    return model_class(replayed, monkeypatch)()


X, T = torch.ones(1, 2), torch.ones(1)


def on_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", True)


@torch.no_grad()
def test_on_a_gpu_it_is_replayed_by_position_or_name(model, replayed, monkeypatch):
    on_a_gpu(monkeypatch)
    for named in ({}, {"mask": None}, {"guidance": None}, {"guidance": T}):
        assert torch.equal(model(X, t=T, **named, return_dict=False)[0], torch.zeros(1, 2))
    assert torch.equal(model(X, T, return_dict=False)[0], torch.zeros(1, 2))
    assert [set(one) for one in replayed] == [
        *[{"x", "t"}] * 3,
        {"x", "t", "guidance"},
        {"x", "t"},
    ]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.no_grad()
def test_graphs_say_what_the_model_says():
    class Model(nn.Linear):
        def forward(self, x: Tensor, return_dict: bool = True) -> Any:
            return (super().forward(x).relu(),)

    plain = Model.forward
    graphed.replay(Model, "forward", ("x",))
    model = Model(8, 8).cuda()
    for size in (2, 3, 2):
        x = torch.randn(size, 8, device="cuda")
        assert torch.equal(model(x, return_dict=False)[0], plain(model, x)[0])
