"""A report as files: tables, figures, a summary for programs and a page to look at."""

import os
from collections.abc import Sequence
from pathlib import Path

from tacache.errors import TACacheError
from tacache.storage.atomic import check_writable, write_atomically
from tacache.storage.reading import read_bounded
from tacache_lab.report import figures, report_page
from tacache_lab.report.readme import fill, marked
from tacache_lab.report.shelves import shelves
from tacache_lab.report.studies import load, read_study, study, study_name, summarise
from tacache_lab.report.summary import Summary
from tacache_lab.report.tables import comma_separated, markdown

TABLES = (".md", ".csv")
ROOM = 24 * 2**20  # bytes, of all pictures on the page
Files = Sequence[str | os.PathLike[str]]


def write_report(files: Files, out: str | os.PathLike[str], *, room: int = ROOM) -> list[Path]:
    """Write the report of some results files into a folder, and return what was written."""
    folder = Path(out)
    check_writable(folder)
    figures.check()
    report_page.check()
    loaded = [(Path(file), load(Path(file))) for file in files]
    summary = summarise(study(study_name(file), records) for file, records in loaded)
    _check_ours(folder, [shown.name for shown in summary.studies])
    folder.mkdir(parents=True, exist_ok=True)
    written, sections = [summary.save(folder / "summary.json")], []
    for shown, (file, records) in zip(summary.studies, loaded, strict=True):
        for suffix, text in zip(TABLES, (markdown(shown), comma_separated(shown)), strict=True):
            written.append(folder / f"{shown.name}{suffix}")
            write_atomically(written[-1], text)
        drawn = figures.draw(shown, folder)
        kept = shelves(records, file.parent, room)
        room -= kept.size
        vector = {p.stem.removeprefix(f"{shown.name}-"): p for p in drawn if p.suffix == ".svg"}
        sections.append(report_page.section(shown, kept, vector))
        written += drawn
    write_atomically(folder / "index.html", report_page.page(sections))
    return [*written, folder / "index.html"]


def _check_ours(folder: Path, names: Sequence[str]) -> None:
    """Replace pages and tables only in a folder that a report was written to before."""
    pages = (folder / "index.html", *(folder / f"{name}{end}" for name in names for end in TABLES))
    existing = [path for path in pages if path.exists()]
    if existing and not (folder / "summary.json").exists():
        raise TACacheError(
            f"{existing[0]} is there, and no report wrote it: name another folder with --out"
        )


def fill_document(files: Files, document: str | os.PathLike[str]) -> bool:
    """Make the marked tables of a document anew, and return whether it changed."""
    target = Path(document)
    try:
        text = read_bounded(target)
    except (OSError, ValueError) as error:
        raise TACacheError(f"cannot read {target}: {error}") from error
    studies = {study.name: study for study in read_summary(files).studies}
    if not studies.keys() & set(marked(text)):
        name = next(iter(studies))
        raise TACacheError(
            f"{target} shows none of {', '.join(studies)}: put <!-- tacache report: {name} --> and "
            "<!-- end --> on lines of their own where the table is to stand"
        )
    filled = fill(text, studies)
    if filled != text:
        write_atomically(target, filled)
    return filled != text


def read_summary(files: Files) -> Summary:
    """Return the summary of some results files."""
    return summarise(read_study(file) for file in files)
