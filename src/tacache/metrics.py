"""Fidelity of pictures and clips to their references, one number a sample."""

import torch
from torch import Tensor

from tacache.errors import HostError


def psnr(reference: Tensor, image: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of samples along dim 0, values in [0, 1]; inf if equal."""
    if reference.shape != image.shape:
        raise HostError(
            f"pictures of shapes {tuple(reference.shape)} and {tuple(image.shape)} do not compare"
        )
    difference = image.double() - reference.double()
    error = difference.square().reshape(len(image), -1).mean(dim=1)
    return -10 * torch.log10(error)
