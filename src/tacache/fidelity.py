"""Fidelity of pictures and clips to their references, one number a sample."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacache.errors import HostError

CHUNK = 8  # frames measured together, so that a long clip fits into memory
SPECTRAL_WINDOW = 1024  # samples of sound whose spectra are compared
SILENCE = 1e-8  # of the loudest power: 80 dB below it
CAP = 999.0  # the most dB that a file says, of equal pictures: JSON has no infinity
EQUAL_FRAME = 100.0  # dB that a frame without any error has in a mean over frames


def psnr(reference: Tensor, image: Tensor) -> Tensor:
    """Return the PSNR in dB of samples along dim 0, values in [0, 1]; inf where they are equal."""
    check_shapes(reference, image)
    difference = image.double() - reference.double()
    error = difference.square().reshape(len(image), -1).mean(dim=1)
    return -10 * torch.log10(error)


def capped(psnr: float) -> float:
    """Return a PSNR as files hold it: equal pictures have 999 dB instead of infinitely many."""
    return max(min(psnr, CAP), -CAP)


def ssim(reference: Tensor, image: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the structural similarity of pictures (samples, channels, height, width) in [0, 1].

    In float32 it is right to six digits, and fifteen times faster on a CPU.
    """
    check_pictures("SSIM", reference, image)
    pair = (image.to(dtype), reference.to(dtype))
    similarity = load_ssim()(*pair, data_range=1.0, reduction="none")
    assert isinstance(similarity, Tensor)
    return similarity.reshape(len(image))


def load_ssim() -> Callable[..., Any]:
    """Return the function of torchmetrics."""
    try:
        from torchmetrics.functional.image import structural_similarity_index_measure
    except ModuleNotFoundError as error:
        raise HostError("SSIM needs: pip install 'tacache[metrics]'") from error
    return structural_similarity_index_measure


def per_frame(
    metric: Callable[[Tensor, Tensor], Tensor], reference: Tensor, clip: Tensor
) -> Tensor:
    """Return a metric of pictures as its mean over the frames of clips (samples, frames, ...)."""
    check_shapes(reference, clip)
    return over_frames(metric, reference, clip)


def over_frames(metric: Callable[..., Tensor], *clips: Tensor) -> Tensor:
    """Return the mean over frames of a metric of one or more pictures, a few frames at a time."""
    for clip in clips:
        check_clips(clip)
    samples, frames = clips[0].shape[:2]
    pictures = [clip.flatten(0, 1) for clip in clips]
    values = [
        metric(*(some[i : i + CHUNK] for some in pictures))
        for i in range(0, samples * frames, CHUNK)
    ]
    by_frame = torch.cat(values).reshape(samples, frames)
    alike = by_frame.isposinf()  # an equal frame, in dB: it counts, and does not decide alone
    mean = by_frame.masked_fill(alike, EQUAL_FRAME).mean(dim=1)
    return torch.where(alike.all(dim=1), by_frame[:, 0], mean)


def frame_changes(clip: Tensor) -> Tensor:
    """Return the changes between neighbouring frames, moved from [-1, 1] to [0, 1]: none is 0.5.

    Metrics of these tell whether a clip moves as its reference does: `per_frame(psnr,
    frame_changes(reference), frame_changes(clip))`. PSNR then has a peak of 2, their full range.
    """
    check_clips(clip)
    if clip.shape[1] < 2:
        raise HostError("a clip of one frame does not move: give two frames or more")
    return (clip[:, 1:] - clip[:, :-1] + 1) / 2


def check_shapes(reference: Tensor, image: Tensor) -> None:
    """Refuse to compare samples of different shapes."""
    if reference.shape != image.shape:
        raise HostError(
            f"pictures of shapes {tuple(reference.shape)} and {tuple(image.shape)} do not compare"
        )


def check_pictures(title: str, *pictures: Tensor) -> None:
    """Refuse batches of pictures that have not four dimensions, or different shapes."""
    for batch in pictures:
        check_shapes(pictures[0], batch)
        if batch.ndim != 4:
            raise HostError(
                f"{title} takes pictures (samples, channels, height, width), "
                f"not {tuple(batch.shape)}"
            )


def check_clips(clip: Tensor) -> None:
    """Refuse a batch of clips that has not five dimensions, or no frame."""
    if clip.ndim != 5 or not clip.shape[0] * clip.shape[1]:
        raise HostError(
            "clips are (samples, frames, channels, height, width), at least one frame each, "
            f"not {tuple(clip.shape)}"
        )


def spectral_distance(reference: Tensor, sound: Tensor) -> Tensor:
    """Return how far the log spectra of waveforms are apart, in dB; samples lie along dim 0.

    It is the root mean square over frequencies, in the mean over windows (Gray and Markel, 1976).
    What is 80 dB below the loudest part of the reference counts as silence.
    """
    check_shapes(reference, sound)
    pair = torch.stack([reference, sound]).double().cpu().flatten(2)
    size = min(SPECTRAL_WINDOW, pair.shape[-1])
    window = torch.hann_window(size, dtype=pair.dtype)
    frames = pair.unfold(-1, size, max(1, size // 4))
    power = torch.fft.rfft(frames * window).abs().square()
    loudest = power[0].amax(dim=(-2, -1)).clamp(min=1e-30)[:, None, None]
    decibels = 10 * torch.log10(torch.maximum(power / loudest, torch.tensor(SILENCE)))
    return (decibels[1] - decibels[0]).square().mean(dim=-1).sqrt().mean(dim=-1)
