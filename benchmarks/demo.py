"""A demo's strip, figures and table for the documentation.

    tacache demo --film && tacache demo --video
    python -m benchmarks.demo demo/tiny-flux demo/tiny-wan

The strip, the film and the record are copied to docs/figures/demo-MODEL.png (or .gif), .webp and
.json. Pages show the record's table between markers, which this makes anew:

    <!-- tacache demo: tiny-flux -->
    <!-- end -->

Without a folder the tables are made anew from the records that are there.
"""

import argparse
import re
import shutil
from pathlib import Path

from tacache.errors import TACacheError
from tacache_lab.demo.record import ModelDemo
from tacache_lab.demo.telling import markdown

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
MARKED = re.compile(
    r"(?P<start><!-- tacache demo: (?P<model>[\w-]+) -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def read(path: Path) -> ModelDemo:
    """The record of a demo."""
    return ModelDemo.model_validate_json(path.read_text(encoding="utf-8"))


def copy(folder: Path, figures: Path) -> None:
    """Copy a demo's strip and record into the folder of figures, and its film if there is one."""
    record = read(folder / "demo.json")
    strip = folder / ("strip.png" if record.fps is None else "strip.gif")
    films = [film for film in (folder / "film.webp",) if film.is_file()]
    for source in (folder / "demo.json", strip, *films):
        shutil.copyfile(source, figures / f"demo-{record.model}{source.suffix}")


def fill(text: str, figures: Path) -> str:
    """A page with every marked table made anew from the record it names."""

    def filled(match: re.Match[str]) -> str:
        record = figures / f"demo-{match['model']}.json"
        if not record.is_file():
            raise TACacheError(f"{record} is missing: run the demo, then python -m benchmarks.demo")
        table = markdown(read(record))
        return f"{match['start']}\n{table}\n{match['end']}"

    return MARKED.sub(filled, text)


def main() -> None:
    """Copy what the folders hold, and make the tables of all pages anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    for folder in parser.parse_args().folders:
        copy(folder, FIGURES)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text, FIGURES)) != text:
            page.write_text(filled, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} has new tables")


if __name__ == "__main__":
    main()
