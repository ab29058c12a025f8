"""The detector: what pictures show, where, how large and in what colour.

It is trained by `training.detector` on composed scenes. Places and sizes are pixels of a 128x128
picture, x to the right and y downwards.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from tacache.errors import HostError
from tacache.models import embedded
from tacache.storage.files import Frozen

FORMAT, VERSION = "tacache-detector", "1"
SIDE, STRIDE = 128, 8  # pixels of a picture, pixels between two places of the maps
DEFAULT_SIZE = 64.0  # pixels: the size that the size map gives as 0, doubled or halved as +1 or -1
THRESHOLD = 0.3  # confidence of what counts as found, GenEval's
APART = 0.25  # of two sizes together: the least distance between the centres of two objects


class Found(Frozen):
    """One object of a picture; its colour is None where it has no clear one."""

    noun: str
    confidence: float
    x: float
    y: float
    size: float
    colour: str | None


class Architecture(Frozen):
    """What a detector knows and how wide and deep it is."""

    nouns: tuple[str, ...] = Field(min_length=1)
    colours: tuple[str, ...]
    widths: tuple[int, int, int, int] = (32, 64, 128, 192)
    depths: tuple[int, int, int] = (1, 2, 1)


class Maps(NamedTuple):
    """A detector's answer, (count, channels, height / 8, width / 8) each; logits but for `box`."""

    centre: Tensor  # whether an object has its centre here
    nouns: Tensor
    colours: Tensor  # the last channel: no clear colour
    box: Tensor  # x and y of the centre from here in strides, binary logarithm of size / 64


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _convolution(width, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape."""
        return functional.relu(x + self.norm(self.second(self.first(x))))


class Detector(nn.Module):
    """A fully convolutional network in the manner of CenterNet, on RGB in [0, 1]."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        (first, second, third, last), depths = architecture.widths, architecture.depths
        self.fine = nn.Sequential(
            _convolution(3, first, stride=2),
            _convolution(first, second, stride=2),
            *(Residual(second) for _ in range(depths[0])),
            _convolution(second, third, stride=2),
            *(Residual(third) for _ in range(depths[1])),
        )
        self.coarse = nn.Sequential(
            _convolution(third, last, stride=2),
            *(Residual(last) for _ in range(depths[2])),
            _convolution(last, third, kernel=1),
        )
        self.neck = _convolution(third, third)
        self.channels = [1, len(architecture.nouns), len(architecture.colours) + 1, 3]
        self.head = nn.Conv2d(third, sum(self.channels), 1)

    def forward(self, images: Tensor) -> Maps:
        """Return maps of pictures (count, 3, height, width), sides divisible by 16."""
        fine = self.fine(images * 4 - 2)
        coarse = functional.interpolate(self.coarse(fine), scale_factor=2.0, mode="nearest")
        return Maps(*self.head(self.neck(fine + coarse)).split(self.channels, dim=1))


def save_detector(detector: Detector, path: str | os.PathLike[str]) -> Path:
    """Write weights (convolutions in half precision) and architecture to a safetensors file."""
    from safetensors.torch import save_file

    weights = {
        name: (value.half() if value.dim() == 4 else value).cpu().contiguous()
        for name, value in detector.state_dict().items()
    }
    architecture = detector.architecture.model_dump_json()
    metadata = {"format": FORMAT, "version": VERSION, "architecture": architecture}
    save_file(weights, path, metadata=metadata)
    return Path(path)


def load_detector(path: str | os.PathLike[str] | None = None) -> Detector:
    """Return the detector of a file, by default the one that ships, ready to use on the CPU."""
    from safetensors import SafetensorError, safe_open

    path = embedded("tiny-flux").detector if path is None else path
    try:
        with cast(Any, safe_open)(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise HostError(f"cannot read a detector from {path}: {error}") from error
    detector = Detector(_architecture_of(metadata, str(path)))
    try:
        detector.load_state_dict(weights)
    except RuntimeError as error:
        raise HostError(f"{path}: weights do not fit its own architecture: {error}") from error
    return detector.eval()


def detect(
    detector: nn.Module, images: Tensor, threshold: float = THRESHOLD, batch: int = 64
) -> list[list[Found]]:
    """Return what pictures (count, 3, 128, 128) in [0, 1] show, the surest first."""
    if images.dim() != 4 or images.shape[1:] != (3, SIDE, SIDE):
        raise HostError(f"pictures are (count, 3, {SIDE}, {SIDE}), not {tuple(images.shape)}")
    if len(images) and not (images.min() >= -1e-3 and images.max() <= 1 + 1e-3):
        raise HostError("pictures have values outside [0, 1]: scale them, or clamp them")
    architecture = cast(Architecture, detector.architecture)
    device = next((value.device for value in detector.parameters()), images.device)
    with torch.inference_mode():
        return [
            picture
            for part in torch.split(images, batch)
            for picture in read_maps(detector(part.to(device).float()), architecture, threshold)
        ]


def read_maps(maps: Maps, architecture: Architecture, threshold: float) -> list[list[Found]]:
    """Return objects at the peaks of the maps, one for each place."""
    centre, nouns, colours, box = (part.float().cpu() for part in maps)
    confidence, noun = (centre.sigmoid() * nouns.softmax(dim=1)).max(dim=1)
    highest = functional.max_pool2d(confidence[:, None], 3, stride=1, padding=1)[:, 0]
    names, colour = (*architecture.colours, None), colours.argmax(dim=1)
    pictures: list[list[Found]] = [[] for _ in confidence]
    for n, j, i in ((confidence == highest) & (confidence >= threshold)).nonzero().tolist():
        across, down, size = box[n, :, j, i].tolist()
        thing = Found(
            noun=architecture.nouns[int(noun[n, j, i])],
            confidence=confidence[n, j, i].item(),
            x=(i + 0.5 + across) * STRIDE,
            y=(j + 0.5 + down) * STRIDE,
            size=DEFAULT_SIZE * 2 ** min(max(size, -4.0), 4.0),
            colour=names[int(colour[n, j, i])],
        )
        pictures[n].append(thing)
    return [_apart(thing) for thing in pictures]


def _convolution(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _architecture_of(metadata: dict[str, str], name: str) -> Architecture:
    """Return the architecture in a file's metadata, which must be ours."""
    if metadata.get("format") != FORMAT:
        raise HostError(f"{name} is not a {FORMAT} file: its format is {metadata.get('format')!r}")
    if metadata.get("version") != VERSION:
        raise HostError(
            f"{name} has version {metadata.get('version')!r} of {FORMAT}, this tacache reads "
            f"version {VERSION}: train the detector again"
        )
    try:
        fields = json.loads(metadata.get("architecture", ""))
        return Architecture.model_validate(fields)
    except ValueError as error:  # ValidationError and JSONDecodeError are
        raise HostError(f"{name}: its architecture cannot be read: {error}") from error


def _apart(objects: list[Found]) -> list[Found]:
    """Return the surest first, without those that lie on a surer one."""
    kept: list[Found] = []
    for thing in sorted(objects, key=lambda thing: -thing.confidence):
        if all(_distance(thing, other) >= APART * (thing.size + other.size) for other in kept):
            kept.append(thing)
    return kept


def _distance(first: Found, second: Found) -> float:
    return max(abs(first.x - second.x), abs(first.y - second.y))
