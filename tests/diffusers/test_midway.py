"""Timesteps that a pipeline cuts where its strength starts."""

import copy

import torch

from tacache.diffusers.midway import CutTimesteps

ANCHORS = torch.tensor([7.0, 3.0])


def cut_at(start):
    begun = []

    def begin():
        begun.append(start)
        return ANCHORS

    return CutTimesteps.of(torch.arange(10.0, 0.0, -1.0), start, begin), begun


def test_the_cut_gives_the_anchors():
    timesteps, begun = cut_at(3)
    assert timesteps[3:] is ANCHORS
    assert begun == [3]


def test_everything_else_sees_the_full_steps():
    timesteps, begun = cut_at(3)
    assert len(timesteps) == 10
    assert timesteps[3] == 7.0
    assert torch.equal(timesteps[2:], torch.arange(8.0, 0.0, -1.0))
    assert torch.equal(timesteps[3:5], torch.tensor([7.0, 6.0]))
    for made in (timesteps.to(torch.float64), timesteps * 2, copy.deepcopy(timesteps)):
        assert type(made) is torch.Tensor
        assert len(made[3:]) == 7
    assert not begun
