"""Galaxies by the score networks of the package galaxygrad (Sampson and others, 2023).

Its networks are MLP-mixers on patches, and give the score of the variance-preserving process
y = a x_0 + b eps with a^2 = exp(-tau), b^2 = 1 - a^2 and tau in [0, 10]. In the coordinates of a
rectified flow, x = y / (a + b) = (1 - t) x_0 + t eps with t = b / (a + b). The noise is predicted
as eps = -b score, so that the velocity eps - x_0 is (eps - x) / (1 - t).
"""

import io
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from tacache.grid import time_grid
from tacache.hosts import Pixels
from tacache.velocity import Velocity
from tacache_lab.published_files import Member, PublishedArchive
from tacache_lab.third_party.velocity_host import ThirdPartyModel

MAX_TAU = 10.0  # tau of pure noise
ENDS = 7  # arrays outside of the blocks: two convolutions, the last norm, and the longest tau
DARKEST, BRIGHTEST = -0.5, 9.5  # of the pictures' values, which are logarithms of brightness
PUBLISHED = PublishedArchive(
    title="galaxy networks",
    requirement="galaxygrad==0.2.1",
    archive="galaxygrad-0.2.1-py3-none-any.whl",
    sha256="56fd8f02de3b025e87f690a494014371391894f2288356288068f9f5e90d8a97",
    folder="galaxygrad",
    members={
        f"hsc-{side}.eqx": Member(f"galaxygrad/eqx_hsc_ScoreNet{side}.eqx", sha256)
        for side, sha256 in {
            32: "cb926562fcdfcbd33952fea8b2394074e75cb652fb7824c4c809a5f89a0a6532",
            64: "4758114b1b77e4640ca7b834a976202aeb126fd7332ec07842af46d72c6b2e01",
        }.items()
    },
)


class MixerBlock(NamedTuple):
    """One block: an MLP over the patches and one over the channels, each after its norm."""

    patches: tuple[Tensor, Tensor, Tensor, Tensor]
    channels: tuple[Tensor, Tensor, Tensor, Tensor]
    norm_patches: tuple[Tensor, Tensor]
    norm_channels: tuple[Tensor, Tensor]

    def __call__(self, y: Tensor) -> Tensor:
        """Return the next values, shaped (samples, channels, patches)."""
        y = y + perceptron(F.layer_norm(y, y.shape[1:], *self.norm_patches), *self.patches)
        y = y.transpose(1, 2)
        y = y + perceptron(F.layer_norm(y, y.shape[1:], *self.norm_channels), *self.channels)
        return y.transpose(1, 2)


class GalaxyScore:
    """A score network by its arrays, in the order in which the package wrote them."""

    def __init__(self, arrays: Sequence[Tensor]) -> None:
        values = iter(arrays)
        self._into = next(values), next(values).flatten()
        out, bias = next(values), next(values)
        # their transposed convolution slides the kernel the other way round than torch's
        self._out = out.transpose(0, 1).flip(-1, -2).contiguous(), bias.flatten()
        self._blocks = [_block(values) for _ in range((len(arrays) - ENDS) // 12)]
        self._norm = next(values), next(values)
        self._longest = float(next(values))

    def __call__(self, y: Tensor, tau: float) -> Tensor:
        """Return the score of pictures shaped (samples, 1, side, side)."""
        patch = self._into[0].shape[-1]
        y = torch.cat([y, torch.full_like(y, tau / self._longest)], dim=1)
        y = F.conv2d(y, *self._into, stride=patch)
        patches = y.shape
        y = y.flatten(2)
        for block in self._blocks:
            y = block(y)
        y = F.layer_norm(y, y.shape[1:], *self._norm).reshape(patches)
        return F.conv_transpose2d(y, *self._out, stride=patch)


def perceptron(y: Tensor, into: Tensor, into_bias: Tensor, out: Tensor, out_bias: Tensor) -> Tensor:
    """Return two linear layers with a ReLU between them."""
    return F.linear(F.linear(y, into, into_bias).relu(), out, out_bias)


def _block(values: Iterator[Tensor]) -> MixerBlock:
    a = [next(values) for _ in range(12)]
    return MixerBlock(
        (a[0], a[1], a[2], a[3]), (a[4], a[5], a[6], a[7]), (a[8], a[9]), (a[10], a[11])
    )


def read_arrays(content: bytes) -> list[Tensor]:
    """Return the arrays of a file that holds one after the other; nothing is unpickled."""
    file, arrays = io.BytesIO(content), list[Tensor]()
    while file.tell() < len(content):
        arrays.append(torch.from_numpy(np.asarray(np.load(file, allow_pickle=False))))
    return arrays


def rectified(score: GalaxyScore) -> Velocity:
    """Return the velocity of a score network in the coordinates of a rectified flow."""

    def velocity(x: Tensor, t: float) -> Tensor:
        size = math.hypot(t, 1 - t)  # y = x / size, a = (1 - t) / size, b = t / size
        b = t / size
        eps = -b * score(x / size, -math.log1p(-b * b))
        return (eps - x) / (1 - t)

    return velocity


def galaxy_times(steps: int) -> tuple[float, ...]:
    """Return equal steps from the noisiest level that the networks know to 0."""
    a = math.exp(-MAX_TAU / 2)
    b = math.sqrt(1 - a * a)
    return tuple(b / (a + b) * t for t in time_grid(steps))


def galaxy_picture(x: Tensor) -> Pixels:
    """Return a picture in grey; what is darker or brighter than all galaxies is cut off."""
    grey = ((x[0, 0] - DARKEST) / (BRIGHTEST - DARKEST)).clamp(0, 1).float().cpu().numpy()
    return np.repeat(grey[:, :, None], 3, axis=2)


def _model(side: int) -> ThirdPartyModel:
    return ThirdPartyModel(
        name=f"galaxies-{side}",
        package=PUBLISHED.requirement,
        shape=(1, side, side),
        times=galaxy_times,
        load=lambda: rectified(GalaxyScore(read_arrays(PUBLISHED.read(f"hsc-{side}.eqx")))),
        picture=galaxy_picture,
    )


GALAXIES = (_model(32), _model(64))
