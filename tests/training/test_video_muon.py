"""The optimizer of the video model's training."""

import copy

import pytest
import torch
from torch import nn

from training.video.muon import SIZE_OF_ADAM, Both, Muon, is_matrix, orthogonal


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


def test_a_step_has_the_size_of_one_of_adam_whatever_the_gradient():
    torch.manual_seed(0)
    for scale in (1e-4, 1.0, 1e4):
        weight = nn.Parameter(torch.zeros(32, 8, 3, 3))
        weight.grad = scale * torch.randn_like(weight)
        Muon([weight], lr=0.1).step()
        assert weight.detach().square().mean().sqrt().item() == pytest.approx(
            0.1 * SIZE_OF_ADAM, rel=0.3
        )


def test_weights_of_one_shape_move_as_each_would_alone():
    torch.manual_seed(0)
    together = [nn.Parameter(torch.randn(6, 4)) for _ in range(3)]
    alone = copy.deepcopy(together)
    one, many = Muon(together, weight_decay=0.1), [Muon([w], weight_decay=0.1) for w in alone]
    for _ in range(3):
        for first, second in zip(together, alone, strict=True):
            first.grad = torch.randn_like(first)
            second.grad = first.grad.clone()
        one.step()
        for optimizer in many:
            optimizer.step()
    for first, second in zip(together, alone, strict=True):
        torch.testing.assert_close(first, second)


def test_a_weight_without_a_gradient_stays():
    weights = [nn.Parameter(torch.ones(4, 4)) for _ in range(2)]
    weights[0].grad = torch.randn(4, 4)
    Muon(weights).step()
    assert (weights[1] == 1).all()
    assert (weights[0] != 1).all()


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


def test_matrices_within_are_muons_and_the_rest_is_adams():
    model = small()
    optimizer = Both(model, ("0.",), lr=1e-2)
    muon, adam = (part.param_groups[0]["params"] for part in optimizer.parts)
    assert [tuple(p.shape) for p in muon] == [(16, 16), (4, 16)]
    assert len(muon) + len(adam) == len(list(model.parameters()))
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    first = fit(model, optimizer, 1)
    assert fit(model, optimizer, 200) < 0.2 * first
    assert all(p.grad is None for p in model.parameters())
    assert not is_matrix(torch.ones(8, 1, 1, 1))  # a gain of one number for each channel


def test_both_go_on_from_what_they_kept():
    model = small()
    optimizer = Both(model, (), lr=1e-3)
    fit(model, optimizer, 3)
    other = copy.deepcopy(model)
    again = Both(other, (), lr=1e-3)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert fit(model, optimizer, 3, seed=1) == fit(other, again, 3, seed=1)


def test_the_state_of_another_optimizer_is_refused():
    model = small()
    kept = torch.optim.AdamW(model.parameters()).state_dict()
    with pytest.raises(ValueError, match=r"of another optimizer.*--start"):
        Both(model, ()).load_state_dict(kept)
