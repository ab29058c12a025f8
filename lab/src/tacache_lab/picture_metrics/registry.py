"""All metrics by name: what each needs, whether it can run here, and its numbers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from tacache.errors import HostError
from tacache.fidelity import (
    frame_changes,
    load_ssim,
    over_frames,
    per_frame,
    psnr,
    ssim,
)
from tacache_lab.following import TAGS, Item
from tacache_lab.picture_metrics.perceptual import load_network, lpips
from tacache_lab.picture_metrics.quality import (
    clip_iqa,
    clip_similarity,
    following,
    load_clip,
    load_clip_iqa,
    load_q_align,
    q_align,
)


@dataclass(frozen=True)
class Samples:
    """Pictures (samples, channels, height, width) or clips (samples, frames, ...) in [0, 1].

    `answers` say what each picture must show, `detector` is the file of one that can tell.
    """

    images: Tensor
    references: Tensor | None = None
    prompts: Sequence[str] | None = None
    answers: Sequence[Item] | None = None
    detector: Path | None = None


@dataclass(frozen=True)
class Metric:
    """One number a sample; `prepare` loads what it needs or raises a HostError that says what.

    A metric whose samples are of different `kinds` has a mean over each, beside that over all;
    `kinds_of` says which kind each sample is.
    """

    title: str
    better: Literal["higher", "lower"]
    needs: Literal["references", "prompts", "answers"] | None
    compute: Callable[[Samples], Tensor]
    prepare: Callable[[], object] = lambda: None
    kinds: tuple[str, ...] = ()
    kinds_of: Callable[[Samples], Sequence[str]] = lambda samples: ()


def measure(names: Iterable[str], samples: Samples) -> dict[str, list[float] | str]:
    """Return the numbers of each metric, or `not run: <what is missing>`, or `failed: <error>`.

    Only a name that is not in METRICS raises: nothing else may stop a long benchmark.
    """
    chosen = list(names)
    for name in chosen:
        if name not in METRICS:
            raise HostError(f"no metric {name!r}: there are {', '.join(METRICS)}")
    return {name: _outcome(METRICS[name], samples) for name in chosen}


@cache
def missing(metric: Metric) -> str | None:
    """Return what this machine lacks for the metric, or None.

    Tried once a process, as it may fetch.
    """
    try:
        metric.prepare()
    except HostError as error:
        return str(error)
    except Exception as error:  # a library's own trouble
        return f"{type(error).__name__}: {error}"
    return None


def _outcome(metric: Metric, samples: Samples) -> list[float] | str:
    try:
        if metric.needs and getattr(samples, metric.needs) is None:
            return f"not run: no {metric.needs} were given"
        if reason := missing(metric):
            return f"not run: {reason}"
        return [float(value) for value in metric.compute(samples)]
    except HostError as error:
        return f"not run: {error}"
    except Exception as error:  # out of memory, or a library's own trouble
        return f"failed: {type(error).__name__}: {error}"


def _compared(compare: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Samples], Tensor]:
    """Return a metric against the references; clips have the mean over frames."""

    def compute(samples: Samples) -> Tensor:
        assert samples.references is not None
        if samples.images.ndim == 5:
            return per_frame(compare, samples.references, samples.images)
        return compare(samples.references, samples.images)

    return compute


def _motion(compare: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Samples], Tensor]:
    """Return the changes from frame to frame against those of the references."""

    def compute(samples: Samples) -> Tensor:
        assert samples.references is not None
        expected, changes = frame_changes(samples.references), frame_changes(samples.images)
        return per_frame(compare, expected, changes)

    return compute


def _judged(judge: Callable[[Tensor], Tensor]) -> Callable[[Samples], Tensor]:
    """Return a metric without references; clips have the mean over frames."""

    def compute(samples: Samples) -> Tensor:
        if samples.images.ndim == 5:
            return over_frames(judge, samples.images)
        return judge(samples.images)

    return compute


def _prompted(samples: Samples) -> Tensor:
    """Return CLIP similarity; clips as the mean over frames."""
    prompts = samples.prompts
    assert prompts is not None
    if samples.images.ndim != 5:
        return clip_similarity(samples.images, prompts)
    frames = samples.images.shape[1]
    repeated = [prompt for prompt in prompts for _ in range(frames)]
    values = clip_similarity(samples.images.flatten(0, 1), repeated)
    return values.reshape(samples.images.shape[:2]).mean(dim=1)


def _followed(samples: Samples) -> Tensor:
    """Return whether pictures show what their prompts ask for."""
    return following(samples.images, samples.answers or (), samples.detector)


def _tags(samples: Samples) -> list[str]:
    """Return what the answers are about: a single object, counting, colours, ..."""
    return [item.tag for item in samples.answers or ()]


_ALEX, _VGG = partial(lpips, backbone="alex"), partial(lpips, backbone="vgg")
_LOAD_ALEX, _LOAD_VGG = partial(load_network, "alex", "cpu"), partial(load_network, "vgg", "cpu")

METRICS: dict[str, Metric] = {
    "psnr": Metric("PSNR", "higher", "references", _compared(psnr)),
    "ssim": Metric("SSIM", "higher", "references", _compared(ssim), load_ssim),
    "lpips": Metric("LPIPS (AlexNet)", "lower", "references", _compared(_ALEX), _LOAD_ALEX),
    "lpips-vgg": Metric("LPIPS (VGG)", "lower", "references", _compared(_VGG), _LOAD_VGG),
    "motion-psnr": Metric("PSNR of motion", "higher", "references", _motion(psnr)),
    "motion-ssim": Metric("SSIM of motion", "higher", "references", _motion(ssim), load_ssim),
    "motion-lpips": Metric("LPIPS of motion", "lower", "references", _motion(_ALEX), _LOAD_ALEX),
    "clip-iqa": Metric("CLIP-IQA", "higher", None, _judged(clip_iqa), load_clip_iqa),
    "q-align": Metric("Q-Align", "higher", None, _judged(q_align), load_q_align),
    "clip-similarity": Metric("CLIP similarity", "higher", "prompts", _prompted, load_clip),
    "following": Metric(
        "Prompt following", "higher", "answers", _followed, kinds=TAGS, kinds_of=_tags
    ),
}
