"""The optimizer of the video model's training."""

import copy

import pytest
import torch
from torch import nn
from training.video.muon import Both, orthogonal

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    found = orthogonal(matrices)
    # random square matrices have singular values near nothing, which five rounds cannot lift
    values = torch.linalg.svdvals(found)[:, : max(1, min(shape[1:]) - 3)]
    assert values.min() > 0.5
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    nearest = left @ right
    cosine = (found * nearest).sum() / (found.norm() * nearest.norm())
    assert cosine > 0.95


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))


def fit(model, optimizer, steps, seed=0):
    torch.manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(32, 8)
        loss = (model(x) - x[:, :4].sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_both_go_on_from_what_they_kept():
    model = small()
    optimizer = Both(model, (), lr=1e-3)
    fit(model, optimizer, 3)
    other = copy.deepcopy(model)
    again = Both(other, (), lr=1e-3)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert fit(model, optimizer, 3, seed=1) == fit(other, again, 3, seed=1)
