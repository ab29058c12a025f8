"""Pictures and clips of records as addresses that need no files, up to a given size in all."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tacache.prompts import Sample
from tacache_lab.bench.records import Record
from tacache_lab.films import film
from tacache_lab.pages import data_address
from tacache_lab.report.quantities import IDENTICAL, in_order, measured
from tacache_lab.report.summary import headlines

# what a browser shows, by suffix
KINDS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".svg": "image/svg+xml",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}


class ReportPicture(NamedTuple):
    """One sample by one method, with what was measured of it."""

    method: str
    evaluations: int | None
    facts: str
    video: bool
    address: str
    film: dict[str, float] | None = None  # of a clip as a film: width, height, frames, seconds


class PictureShelf(NamedTuple):
    """The pictures of one sample, the reference first."""

    prompt: str
    seed: int
    pictures: list[ReportPicture]


class Shelves(NamedTuple):
    """What is shown, and how many samples there was no room for, and pictures without a file."""

    shown: list[PictureShelf]
    left_out: int
    missing: int

    @property
    def size(self) -> int:
        """Return the length of all addresses."""
        return sum(len(picture.address) for shelf in self.shown for picture in shelf.pictures)


def shelves(records: Sequence[Record], folder: Path, room: int) -> Shelves:
    """Return the pictures of as many samples as there is room for, in bytes.

    A sample's all or none.
    """
    files = {record.key: file for record in records if (file := _file(record, folder))}
    named = sum(record.picture is not None for record in records)
    by_subject: dict[Sample, list[Record]] = {}
    for record in records:
        if record.key in files:
            by_subject.setdefault(Sample(record.prompt, record.seed), []).append(record)
    filled: list[PictureShelf] = []
    for subject, group in by_subject.items():
        group.sort(key=lambda record: record.method != "full")  # stable: all others as they came
        shown = [_picture(record, files[record.key]) for record in group]
        room -= sum(len(picture.address.partition(",")[2]) for picture in shown)
        if room < 0:
            break
        filled.append(PictureShelf(subject.text, subject.seed, shown))
    return Shelves(filled, len(by_subject) - len(filled), named - len(files))


def file_address(file: Path) -> str:
    """Return a file as an address that needs no file."""
    return data_address(KINDS[file.suffix.lower()], file.read_bytes())


def _file(record: Record, folder: Path) -> Path | None:
    """Return the picture's file below the folder of the results, if it can be shown.

    Records may come from others, and pages are shared: a file from elsewhere is not put on one,
    also where a link leads to it.
    """
    name = record.picture
    if name is None or "\0" in name or Path(name).suffix.lower() not in KINDS:
        return None
    file = (folder / name).resolve()
    return file if file.is_relative_to(folder.resolve()) and file.is_file() else None


def _picture(record: Record, file: Path) -> ReportPicture:
    facts, moving = _facts(record), film(file)
    if moving is not None:
        content, *_ = moving
        shape = {key: value for key, value in moving._asdict().items() if key != "content"}
        address = data_address("image/png", content)
        return ReportPicture(record.method, record.evaluations, facts, False, address, shape)
    video = KINDS[file.suffix.lower()].startswith("video")
    return ReportPicture(record.method, record.evaluations, facts, video, file_address(file))


def _facts(record: Record) -> str:
    """Return what was measured of one sample, in short."""
    values = measured(record, None)
    texts = [f"{record.spent} evaluations", f"{record.seconds or 0.0:.2f} s"]
    wanted = (*headlines(record.reference or "run"), "score.following")
    for shown in in_order(name for name in wanted if name in values):
        value = values[shown.name]
        same = shown.unit == "dB" and value >= IDENTICAL
        texts.append(
            f"{shown.title} "
            + ("identical" if same else f"{value:.{shown.digits}f} {shown.unit}".rstrip())
        )
    return ", ".join(texts)
