"""Quality of pictures without a reference, by the libraries that maintain these metrics.

Their weights come from model hubs; what is missing is said by a HostError.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tacache.errors import HostError
from tacache.fidelity import check_pictures
from tacache_lab.following import Detector, Item, judge, load_detector

CLIP = "openai/clip-vit-large-patch14"

Loaded = TypeVar("Loaded")


def clip_similarity(image: Tensor, prompts: Sequence[str], model: str = CLIP) -> Tensor:
    """Return 100 times the cosine of picture and prompt in CLIP (CLIPScore), by torchmetrics."""
    check_pictures("CLIP similarity", image)
    if len(prompts) != len(image):
        raise HostError(f"{len(image)} pictures for {len(prompts)} prompts: one each is needed")
    loaded = load_clip(model)
    from torchmetrics.functional.multimodal import clip_score

    pictures = (image.clamp(0, 1) * 255).round().to(torch.uint8)  # as CLIP's processor takes them
    with torch.no_grad():
        scores = [
            clip_score(picture, prompt, lambda: loaded)  # a mean: one pair at a time
            for picture, prompt in zip(pictures, prompts, strict=True)
        ]
    return torch.stack(scores) if scores else image.new_empty(0)


def clip_iqa(image: Tensor) -> Tensor:
    """Return how much rather a good than a bad photo it is, 0 to 1, by CLIP-IQA's own model."""
    check_pictures("CLIP-IQA", image)
    metric = load_clip_iqa().to(image.device)
    values = _one_by_one(metric, image)
    metric.reset()  # it keeps what it has seen
    return values


def q_align(image: Tensor) -> Tensor:
    """Return Q-Align's quality, 1 to 5, by pyiqa on the device it chooses."""
    check_pictures("Q-Align", image)
    return _one_by_one(load_q_align(), image)


def following(image: Tensor, answers: Sequence[Item], detector: Path | None) -> Tensor:
    """Return 1 where a picture shows all that its prompt asks for, else 0, by a detector's file."""
    check_pictures("Prompt following", image)
    if detector is None:
        raise HostError("no detector knows this model's pictures: one ships for tiny-flux")
    verdicts = judge(_loaded(detector), image.float().clamp(0, 1), answers)
    return torch.tensor([float(right) for _, right in verdicts])


@cache
def _loaded(detector: Path) -> Detector:
    """Return a detector, read once a process."""
    return load_detector(detector)


@cache
def load_clip(model: str = CLIP) -> tuple[Any, Any]:
    """Return a CLIP model and its processor, as torchmetrics takes them."""
    _require("CLIP similarity", "quality", "torchmetrics", "transformers")
    import transformers

    def load() -> tuple[Any, Any]:
        clip = transformers.CLIPModel.from_pretrained(model).eval()
        return _Features(clip), transformers.CLIPProcessor.from_pretrained(model)

    return _with_weights("CLIP similarity", model, load)


@cache
def load_clip_iqa() -> Any:
    """Return the metric of torchmetrics, with the model of CLIP-IQA's authors."""
    _require("CLIP-IQA", "quality", "torchmetrics", "transformers", "piq")
    from torchmetrics.multimodal import CLIPImageQualityAssessment

    def load() -> Any:
        return CLIPImageQualityAssessment(model_name_or_path="clip_iqa", data_range=1.0)

    return _with_weights("CLIP-IQA", "piq's clip_iqa", load)


@cache
def load_q_align() -> Any:
    """Return the metric of pyiqa."""
    _require("Q-Align", "q-align", "pyiqa")
    create = importlib.import_module("pyiqa").create_metric
    return _with_weights("Q-Align", "q-future/one-align", lambda: create("qalign"))


def _one_by_one(metric: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """Return large models: one picture at a time, in the range they insist on."""
    values = image.new_empty(len(image), dtype=torch.float32)
    with torch.no_grad():
        for i, picture in enumerate(image.float().clamp(0, 1)):
            values[i] = metric(picture[None]).reshape(())
    return values


class _Features:
    """A CLIP model whose features are tensors in every version of transformers."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config

    def to(self, device: Any) -> "_Features":
        self.model.to(device)
        return self

    def get_image_features(self, *inputs: Tensor) -> Tensor:
        return _pooled(self.model.get_image_features(*inputs))

    def get_text_features(self, *inputs: Tensor) -> Tensor:
        return _pooled(self.model.get_text_features(*inputs))


def _pooled(features: Any) -> Tensor:
    pooled = features if isinstance(features, Tensor) else features.pooler_output
    assert isinstance(pooled, Tensor)
    return pooled


def _require(title: str, extra: str, *modules: str) -> None:
    """Import the libraries, or say which is missing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise HostError(
                f"{title} needs {module} ({error}): pip install 'tacache[{extra}]'"
            ) from error


def _with_weights(title: str, name: str, load: Callable[[], Loaded]) -> Loaded:
    """Return what `load` gives; libraries fail in many ways where weights are out of reach."""
    try:
        return load()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HostError(
            f"{title} needs the weights of {name} ({reason}): run once where they can be "
            "downloaded, or bring the cache of the hub"
        ) from error
