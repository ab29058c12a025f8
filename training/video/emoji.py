"""Real animated objects: Fluent Emoji of the vocabulary that move, scaled and packed in one file.

``python -m training.video.emoji`` fetches four packages with ``npm pack`` (730 MB), takes
the animations whose object ``vocabulary.json`` lists, keeps ``FRAMES`` frames of each loop, cropped
to what the whole loop covers, and writes ``animations.npz``: ``codes`` of the objects, and their
frames as WebP strips, one below the other, RGBA with straight alpha.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training.emoji import VISIBLE, WORK, join_code, load_vocabulary, pack
from training.video.config import FRAMES

PACKAGES = tuple((f"@lobehub/fluent-emoji-anim-{n}", "1.0.0") for n in range(1, 5))
SIDE = 64
QUALITY = 85
LEAST_CHANGE = 0.012  # mean change between frames, of a full change everywhere; less looks still


class Animations(NamedTuple):
    """Codes of the objects, and uint8 (count, FRAMES, SIDE, SIDE, 4) with straight alpha."""

    codes: tuple[str, ...]
    frames: NDArray[np.uint8]


def main() -> None:
    """Fetch, select, scale and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=WORK / "animations.npz")
    parser.add_argument("--cache", type=Path, default=WORK)
    parser.add_argument("--most", type=int, default=300, help="animations kept, liveliest first")
    options = parser.parse_args()
    wanted = {join_code(thing.code.split("-")) for thing in load_vocabulary()}
    found: dict[str, NDArray[np.uint8]] = {}
    for package in PACKAGES:
        for code, content in members(pack(package, options.cache), wanted - set(found)):
            if (frames := read_animation(content)) is not None:
                found[code] = frames
    lively = {code: change(frames) for code, frames in found.items()}
    kept = sorted(found, key=lambda code: -lively[code])[: options.most]
    kept = sorted(code for code in kept if lively[code] >= LEAST_CHANGE)
    save(options.output, {code: found[code] for code in kept})
    size = options.output.stat().st_size / 2**20
    print(f"{len(kept)} of {len(found)} animations, {size:.1f} MiB -> {options.output}")


def members(archive: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """The WebP files of an npm archive whose code is wanted."""
    with tarfile.open(archive) as package:
        for member in package:
            code = join_code(Path(member.name).stem.split("-"))
            if member.name.endswith(".webp") and code in wanted:
                content = package.extractfile(member)
                assert content is not None
                yield code, content.read()


def read_animation(content: bytes) -> NDArray[np.uint8] | None:
    """FRAMES frames spread over the loop, cropped alike and centred; None of a still picture."""
    with Image.open(io.BytesIO(content)) as animation:
        count = getattr(animation, "n_frames", 1)
        if count < FRAMES:
            return None
        frames = []
        for n in range(FRAMES):
            animation.seek(n * count // FRAMES)
            frames.append(animation.convert("RGBA"))
    boxes = [_content(frame) for frame in frames]
    seen = np.array([box for box in boxes if box is not None])
    box = (*seen[:, :2].min(axis=0), *seen[:, 2:].max(axis=0))
    return np.stack([_square(frame.crop(tuple(map(int, box)))) for frame in frames])


def change(frames: NDArray[np.uint8]) -> float:
    """Mean absolute change of premultiplied values from frame to frame, from 0 to 1."""
    premultiplied = frames[..., :3] * (frames[..., 3:] / 255.0) / 255.0
    return float(np.abs(np.diff(premultiplied, axis=0)).mean())


def save(path: Path, animations: dict[str, NDArray[np.uint8]]) -> None:
    """Write codes and strips."""
    strips = [_strip(frames) for frames in animations.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        codes=np.array(list(animations)),
        lengths=np.array([len(strip) for strip in strips]),
        strips=np.frombuffer(b"".join(strips), np.uint8),
    )


def load_animations(path: Path = WORK / "animations.npz") -> Animations:
    """The packed animations."""
    with np.load(path) as archive:
        codes, lengths = archive["codes"], archive["lengths"]
        content = archive["strips"].tobytes()
    ends = np.cumsum(lengths)
    strips = [content[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    frames = [np.array(Image.open(io.BytesIO(strip)).convert("RGBA")) for strip in strips]
    shape = (len(frames), FRAMES, SIDE, SIDE, 4)
    return Animations(tuple(map(str, codes)), np.stack(frames).reshape(shape))


def _content(frame: Image.Image) -> tuple[int, int, int, int] | None:
    """The box of what can be seen."""
    return frame.getchannel("A").point(lambda alpha: 255 if alpha > VISIBLE else 0).getbbox()


def _square(picture: Image.Image) -> NDArray[np.uint8]:
    """The picture scaled into a square of SIDE, centred, resampled premultiplied."""
    scale = SIDE / max(picture.size)
    size = tuple(max(1, round(side * scale)) for side in picture.size)
    small = picture.convert("RGBa").resize(size, Image.Resampling.LANCZOS).convert("RGBA")
    square = Image.new("RGBA", (SIDE, SIDE))
    square.paste(small, ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    pixels = np.array(square)
    pixels[pixels[..., 3] == 0] = 0
    return pixels


def _strip(frames: NDArray[np.uint8]) -> bytes:
    """All frames one below the other as one WebP."""
    stored = io.BytesIO()
    picture = Image.fromarray(frames.reshape(-1, SIDE, 4))
    picture.save(stored, "WEBP", quality=QUALITY, method=6)
    return stored.getvalue()


if __name__ == "__main__":
    main()
