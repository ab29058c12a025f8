"""The pictures of the training scenes: Fluent Emoji cut out, scaled and packed in one file.

``python -m training.emoji -o training/work/emoji.npz`` fetches the three packages with
``npm pack``, joins pictures and names by code point, keeps what ``vocabulary.json`` lists and
writes ``pictures``: uint8 (count, 96, 96, 4), RGBA with STRAIGHT alpha (colour is zero where
alpha is zero), in the order of the vocabulary, cropped to the content and centred.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FOLDER = Path(__file__).parent
WORK = FOLDER / "work"
VOCABULARY = FOLDER / "vocabulary.json"
PICTURES = ("@lobehub/fluent-emoji-3d", "1.1.0")
NAMES = ("unicode-emoji-json", "0.9.0")
KEYWORDS = ("emojilib", "4.0.3")
SIZE = 96
VISIBLE = 8  # alpha above this is content


@dataclass(frozen=True)
class Thing:
    """One object a caption can name; ``synonyms`` maps singular to plural.

    ``video`` says whether clips show it: fewer objects are learnt better in the same time.
    """

    code: str
    noun: str
    plural: str
    category: str
    synonyms: dict[str, str] = field(default_factory=dict)
    colors: tuple[str, ...] = ()
    countable: bool = True
    recolour: bool = False
    video: bool = True

    @property
    def names(self) -> list[tuple[str, str]]:
        """Every (singular, plural) name, the noun first."""
        return [(self.noun, self.plural), *self.synonyms.items()]


def load_vocabulary(path: Path = VOCABULARY) -> list[Thing]:
    """The reviewed list of objects."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [Thing(**{**entry, "colors": tuple(entry["colors"])}) for entry in entries]


def load_pictures(path: Path = WORK / "emoji.npz") -> NDArray[np.uint8]:
    """The packed pictures, (count, 96, 96, 4), straight alpha, in the order of the vocabulary."""
    with np.load(path) as archive:
        pictures: NDArray[np.uint8] = archive["pictures"]
    return pictures


def code_of(text: str) -> str:
    """Code points of an emoji as lower hexadecimal, without variation selectors."""
    return join_code([f"{ord(character):x}" for character in text])


def join_code(parts: list[str]) -> str:
    """Hexadecimal code points in one form: no leading zeros, no variation selectors."""
    trimmed = [part.lower().lstrip("0") for part in parts]
    return "-".join(part for part in trimmed if part != "fe0f")


def pack(package: tuple[str, str], cache: Path) -> Path:
    """The package's archive in the cache folder, fetched with ``npm pack`` when missing."""
    name, version = package
    archive = cache / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"{name}@{version}"]
        subprocess.run(command, cwd=cache, check=True, stdout=subprocess.DEVNULL)
    return archive


def read_json(archive: Path, member: str) -> dict[str, Any]:
    """One JSON file of an npm archive."""
    with tarfile.open(archive) as package:
        content = package.extractfile(f"package/{member}")
        if content is None:
            raise FileNotFoundError(f"{archive.name} holds no {member}")
        parsed: dict[str, Any] = json.load(content)
    return parsed


def read_names(cache: Path) -> dict[str, dict[str, Any]]:
    """Name, group and keywords of every emoji by code."""
    names = read_json(pack(NAMES, cache), "data-by-emoji.json")
    keywords = read_json(pack(KEYWORDS, cache), "dist/emoji-en-US.json")
    return {
        code_of(emoji): {
            "name": entry["name"],
            "group": entry["group"],
            "keywords": keywords.get(emoji, []),
        }
        for emoji, entry in names.items()
    }


def cut_out(picture: Image.Image, size: int = SIZE) -> NDArray[np.uint8]:
    """The content of an RGBA picture, scaled to fill a square of this side and centred."""
    mask = picture.getchannel("A").point(lambda alpha: 255 if alpha > VISIBLE else 0)
    content = picture.crop(mask.getbbox()).convert("RGBa")  # resampled premultiplied: no fringes
    scale = size / max(content.size)
    width, height = (max(1, round(side * scale)) for side in content.size)
    content = content.resize((width, height), Image.Resampling.LANCZOS).convert("RGBA")
    square = Image.new("RGBA", (size, size))
    square.paste(content, ((size - width) // 2, (size - height) // 2))
    pixels = np.array(square)
    pixels[pixels[..., 3] == 0] = 0
    return pixels


def cut_all(things: list[Thing], cache: Path) -> NDArray[np.uint8]:
    """Pictures of these objects in their order."""
    with tarfile.open(pack(PICTURES, cache)) as package:
        members = {
            join_code(Path(member.name).stem.split("-")): member
            for member in package.getmembers()
            if member.name.endswith(".webp")
        }
        wanted = {join_code(thing.code.split("-")) for thing in things}
        content = {
            code: package.extractfile(member).read()  # type: ignore[union-attr]
            for code, member in members.items()
            if code in wanted
        }
    keys = [join_code(thing.code.split("-")) for thing in things]
    pictures = [Image.open(io.BytesIO(content[key])).convert("RGBA") for key in keys]
    return np.stack([cut_out(picture) for picture in pictures])


def check_names(things: list[Thing], names: dict[str, dict[str, Any]]) -> list[str]:
    """Objects whose code the name packages do not know, or that are people or flags."""
    faults = []
    for thing in things:
        entry = names.get(join_code(thing.code.split("-")))
        if entry is None or entry["group"] in ("People & Body", "Flags"):
            faults.append(f"{thing.noun} ({thing.code})")
    return faults


def main() -> None:
    """Fetch, check, cut and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=WORK / "emoji.npz")
    parser.add_argument("--cache", type=Path, default=WORK)
    arguments = parser.parse_args()
    things = load_vocabulary()
    if faults := check_names(things, read_names(arguments.cache)):
        raise SystemExit("not in the name packages: " + ", ".join(faults))
    pictures = cut_all(things, arguments.cache)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.output, pictures=pictures)
    size = arguments.output.stat().st_size / 2**20
    print(f"{len(things)} objects, {pictures.shape}, {size:.1f} MiB -> {arguments.output}")


if __name__ == "__main__":
    main()
