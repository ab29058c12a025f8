"""The files of a demo beside its pictures: record, table, strip and page."""

from pathlib import Path

from tacache.lab.demo.page import write_page
from tacache.lab.demo.record import ModelDemo
from tacache.lab.demo.strip import write_strip
from tacache.lab.demo.telling import markdown
from tacache.storage.atomic import write_atomically


def write_files(made: ModelDemo, out: Path) -> None:
    """Write all of them; the record comes first, and says that the others are a demo's."""
    write_atomically(out / "demo.json", made.model_dump_json(indent=2) + "\n")
    write_atomically(out / "table.md", markdown(made))
    write_strip(made, out)
    write_page(made, out)
