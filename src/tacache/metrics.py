"""Fidelity of pictures and clips to their references, one number a sample."""

import torch
from torch import Tensor

from tacache.errors import HostError


def psnr(reference: Tensor, image: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of samples along dim 0, values in [0, 1]; inf if equal."""
    _check_shapes(reference, image)
    difference = image.double() - reference.double()
    error = difference.square().reshape(len(image), -1).mean(dim=1)
    return -10 * torch.log10(error)


def ssim(reference: Tensor, image: Tensor) -> Tensor:
    """Structural similarity of pictures (samples, channels, height, width), values in [0, 1]."""
    _check_shapes(reference, image)
    if image.ndim != 4:
        raise HostError(
            f"SSIM compares pictures (samples, channels, height, width), not {tuple(image.shape)}"
        )
    try:
        from torchmetrics.functional.image import structural_similarity_index_measure
    except ModuleNotFoundError as error:
        raise HostError("SSIM needs: pip install 'tacache[metrics]'") from error
    similarity = structural_similarity_index_measure(
        image.double(), reference.double(), data_range=1.0, reduction="none"
    )
    assert isinstance(similarity, Tensor)
    return similarity.reshape(len(image))


def _check_shapes(reference: Tensor, image: Tensor) -> None:
    if reference.shape != image.shape:
        raise HostError(
            f"pictures of shapes {tuple(reference.shape)} and {tuple(image.shape)} do not compare"
        )
