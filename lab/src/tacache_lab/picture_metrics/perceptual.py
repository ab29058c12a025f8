"""LPIPS, Zhang et al. 2018, "The Unreasonable Effectiveness of Deep Features", version 0.1.

Plain torch: the distance of eq. 1 on five taps of AlexNet or VGG16.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from tacache.errors import HostError
from tacache.fidelity import check_pictures
from tacache_lab.picture_metrics.lpips_weights import Backbone, load_convolutions, load_heads


class Stage(NamedTuple):
    """What lies between two taps: pooling by this kernel (0: none), then convolutions."""

    pool: int
    convolutions: int
    stride: int = 1
    padding: int = 1


STAGES: dict[Backbone, tuple[Stage, ...]] = {
    "alex": (Stage(0, 1, 4, 2), Stage(3, 1, 1, 2), Stage(3, 1), Stage(0, 1), Stage(0, 1)),
    "vgg": (Stage(0, 2), Stage(2, 2), Stage(2, 3), Stage(2, 3), Stage(2, 3)),
}
MIN_PIXELS: dict[Backbone, int] = {"alex": 31, "vgg": 16}  # pixels: smaller leave an empty tap
# ImageNet's mean and deviation, for values in [-1, 1]
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


class Network(NamedTuple):
    """A backbone's convolutions and the heads of its taps."""

    stages: tuple[Stage, ...]
    convolutions: tuple[tuple[Tensor, Tensor], ...]
    heads: tuple[Tensor, ...]


def lpips(reference: Tensor, image: Tensor, backbone: Backbone = "alex") -> Tensor:
    """Return perceptual distance of RGB pictures (samples, 3, height, width), values in [0, 1]."""
    if backbone not in STAGES:
        raise HostError(f"no LPIPS backbone {backbone!r}: there are {', '.join(STAGES)}")
    check_pictures("LPIPS", reference, image)
    least = MIN_PIXELS[backbone]
    if image.shape[1] != 3 or min(image.shape[2:]) < least:
        raise HostError(
            f"LPIPS ({backbone}) takes RGB pictures of {least}x{least} pixels or more, "
            f"not {tuple(image.shape)}"
        )
    network = load_network(backbone, str(image.device))
    return distances(network, reference.float(), image.float())


@cache
def load_network(backbone: Backbone, device: str) -> Network:
    """Return the network on a device; its weights are fetched on first use."""
    if device == "cpu":
        return Network(STAGES[backbone], load_convolutions(backbone), load_heads(backbone))
    stages, convolutions, heads = load_network(backbone, "cpu")
    there = tuple((kernel.to(device), bias.to(device)) for kernel, bias in convolutions)
    return Network(stages, there, tuple(head.to(device) for head in heads))


@torch.no_grad()
def distances(network: Network, reference: Tensor, image: Tensor) -> Tensor:
    """Pair by pair: a pair's distance does not depend on its batch, and memory stays small."""
    shift, scale = (image.new_tensor(values).view(1, 3, 1, 1) for values in (SHIFT, SCALE))
    by_pair = []
    # without TF32, which would move the third digit on some devices
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for pair in zip(reference, image, strict=True):
            scaled = (torch.stack(pair) * 2 - 1 - shift) / scale
            by_pair.append(distance(taps(network, scaled), network.heads))
    return torch.stack(by_pair) if by_pair else image.new_empty(0)


def taps(network: Network, x: Tensor) -> Iterator[Tensor]:
    """Yield the features after each stage."""
    convolutions = iter(network.convolutions)
    for stage in network.stages:
        if stage.pool:
            x = max_pool2d(x, stage.pool, stride=2)
        for _ in range(stage.convolutions):
            kernel, bias = next(convolutions)
            x = relu(conv2d(x, kernel, bias, stage.stride, stage.padding))
        yield x


def distance(features: Iterable[Tensor], heads: Sequence[Tensor]) -> Tensor:
    """Return Eq. 1, for a pair along dim 0: weighted squared differences of unit features."""
    total = heads[0].new_zeros(())
    for feature, head in zip(features, heads, strict=True):
        unit = feature / (feature.square().sum(dim=1, keepdim=True).sqrt() + 1e-10)
        total = total + (head.view(-1, 1, 1) * (unit[0] - unit[1]).square()).sum(dim=0).mean()
    return total
