"""Crystals by the denoiser of the package diffcrysgen (MIT licence).

A U-Net over 136 rows of three numbers, preconditioned as in EDM (Karras et al., NeurIPS 2022), and
walked on EDM's noise levels. With sigma = t / (1 - t), x = (x_0 + sigma eps) / (1 + sigma) is on a
rectified flow, whose velocity eps - x_0 is (x - x_0) / t. The network's attention runs over the
batch: so a sample is a batch of `BATCH` crystals, which is never split.
"""

import io
import math
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from tacache.hosts import Pixels
from tacache.velocity import Velocity
from tacache_lab.published_files import Member, PublishedArchive
from tacache_lab.third_party.velocity_host import ThirdPartyModel

BATCH, ROWS, NUMBERS = 4, 136, 3
MAX_SIGMA, MIN_SIGMA, POWER = 80.0, 0.002, 7.0  # noise levels, as the package's sampler has them
SPREAD = 0.5  # standard deviation of the data, which the preconditioning assumes
WIDTH, PERIOD = 256, 10_000  # of the embedding of a noise level
NETWORK = "denoise_fn_D.denoise_fn_F."
CONVOLUTION = re.compile(r"conv[12]\.weight")  # of residual blocks: kernels are standardised
PUBLISHED = PublishedArchive(
    title="crystal weights",
    requirement="diffcrysgen==0.1.1",
    archive="diffcrysgen-0.1.1.tar.gz",
    sha256="ff85a0bf51cb47d3e7f3bc0ef188f977c4a58f09898b61299d828d97ba7f06bd",
    folder="diffcrysgen",
    members={
        "sdm.pt": Member(
            "diffcrysgen-0.1.1/assets/saved-model/sdm.pt",
            "f60e11b59e54d5facac9acc5e19404567b874ed067a7f2ee0b5aec7dde029eb7",
        )
    },
)

LevelOf = Callable[[str], Tensor]  # what a noise level adds to the channels of a layer


class CrystalDenoiser:
    """The U-Net by its weights: it gives the crystals that it sees in a noisy batch."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = {
            name.removeprefix(NETWORK): standardized(value) if CONVOLUTION.search(name) else value
            for name, value in weights.items()
        }

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """Return the denoised batch, with EDM's scales of what goes in and comes out."""
        size = math.hypot(sigma, SPREAD)
        seen = self._network(x / size, math.log(sigma) / 4)
        return (SPREAD / size) ** 2 * x + sigma * SPREAD / size * seen

    def _network(self, x: Tensor, level: float) -> Tensor:
        level_of = self._levels(embedding(level).to(x))
        kept, depths = list[Tensor](), ("1", "2", "3")
        for depth in depths:
            x = self._blocks(f"b{depth}", x + level_of(f"te{depth}"))
            kept.append(x)
            x = F.conv1d(x, *self._layer(f"down{depth}"), stride=2, padding=1)
        x = self._blocks("b_mid", self._attention("attn1", x) + level_of("te_mid"))
        x = self._attention("attn2", x)
        for depth in depths:
            x = F.conv_transpose1d(x, *self._layer(f"up{depth}"), stride=2, padding=1)
            x, number = torch.cat([kept.pop(), x], dim=1), 3 + int(depth)
            x = self._blocks(f"b{number}", x + level_of(f"te{number}"))
        return F.conv1d(x, *self._layer("conv_out"), padding=1)

    def _layer(self, name: str) -> tuple[Tensor, Tensor]:
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]

    def _levels(self, embedded: Tensor) -> LevelOf:
        def level_of(name: str) -> Tensor:
            inner = F.silu(F.linear(embedded, *self._layer(f"{name}.0")))
            return F.linear(inner, *self._layer(f"{name}.2"))[:, None]

        return level_of

    def _blocks(self, name: str, x: Tensor) -> Tensor:
        for block in (f"{name}.{i}" for i in range(3)):
            y = F.conv1d(x, *self._layer(f"{block}.conv1"), padding=1)
            y = F.silu(F.group_norm(y, 1, *self._layer(f"{block}.norm1")))
            y = F.conv1d(y, *self._layer(f"{block}.conv2"), padding=1)
            y = F.group_norm(y, 1, *self._layer(f"{block}.norm2"))
            if f"{block}.shortcut.weight" in self._weights:
                x = F.conv1d(x, self._weights[f"{block}.shortcut.weight"])
            x = F.silu(y + x)
        return x

    def _attention(self, name: str, x: Tensor) -> Tensor:
        """Return attention of each channel's rows over the batch, with its feed-forward layer."""
        inner = f"{name}.attention"
        projection = (
            self._weights[f"{inner}.in_proj_weight"],
            self._weights[f"{inner}.in_proj_bias"],
        )
        q, k, v = F.linear(x.transpose(0, 1), *projection).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(0, 1)
        x = x + F.linear(mixed, *self._layer(f"{inner}.out_proj"))
        x = F.layer_norm(x, x.shape[-1:], *self._layer(f"{name}.layernorm1"))
        y = F.linear(
            F.linear(x, *self._layer(f"{name}.ffn.0")).relu(), *self._layer(f"{name}.ffn.2")
        )
        return F.layer_norm(x + y, x.shape[-1:], *self._layer(f"{name}.layernorm2"))


def standardized(weight: Tensor) -> Tensor:
    """Return kernels of mean 0 and variance 1 each."""
    variance, mean = torch.var_mean(weight, dim=(1, 2), keepdim=True)
    return (weight - mean) / torch.sqrt(variance + 1e-5)


def embedding(level: float) -> Tensor:
    """Return sines and cosines of a noise level, in turns."""
    frequencies = torch.arange(WIDTH // 2) / (WIDTH // 2)
    angles = level * PERIOD**-frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=1).flatten()


def crystal_velocity(denoiser: CrystalDenoiser) -> Velocity:
    """Return the velocity of the denoiser in the coordinates of a rectified flow."""

    def velocity(x: Tensor, t: float) -> Tensor:
        data = denoiser(x[0] / (1 - t), t / (1 - t))[None]
        return (x - data) / t

    return velocity


def crystal_times(steps: int) -> tuple[float, ...]:
    """Return EDM's noise levels as times of a rectified flow, and 0."""
    first, last = MAX_SIGMA ** (1 / POWER), MIN_SIGMA ** (1 / POWER)
    shares = (i / max(steps - 1, 1) for i in range(steps))
    levels = [(first + share * (last - first)) ** POWER for share in shares]
    return (*(sigma / (1 + sigma) for sigma in levels), 0.0)


def crystal_picture(x: Tensor) -> Pixels:
    """Return a batch as one picture: a crystal a row, its numbers as colours."""
    return ((x[0].movedim(1, -1) + 1) / 2).clamp(0, 1).float().cpu().numpy()


def _loaded() -> Velocity:
    weights = torch.load(
        io.BytesIO(PUBLISHED.read("sdm.pt")), map_location="cpu", weights_only=True
    )
    return crystal_velocity(CrystalDenoiser(weights))


CRYSTALS = ThirdPartyModel(
    name="crystals",
    package=PUBLISHED.requirement,
    shape=(BATCH, NUMBERS, ROWS),
    times=crystal_times,
    load=_loaded,
    picture=crystal_picture,
)
