"""`tacache report`: tables, figures and a page from records."""

from pathlib import Path
from typing import Annotated

import typer

from tacache.cli.options import Json
from tacache.cli.printing import print_json, say


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Files that `tacache bench` wrote.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for files (default: report)."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Renew the marked tables of this Markdown file.")
    ] = None,
    pictures: Annotated[
        float, typer.Option(min=0, help="How many MiB of pictures the page may hold.")
    ] = 24.0,
    as_json: Json = False,
) -> None:
    """Make tables, figures and a page from the records of benchmarks; nothing is run.

    Each results file is a study of its own, named after it. A folder gets index.html (sortable
    tables, plot, pictures side by side; one file that fetches nothing), Markdown and CSV tables,
    figures as SVG and PNG, and summary.json.

    --into renews the tables of a Markdown file; a folder is then written only if -o names one. A
    table stands between <!-- tacache report: NAME --> and <!-- end -->. NAME is that of a study.
    Quantities may follow it, and top=8, which keeps our methods and the best 8 others.

    [bold]Examples[/bold]

    tacache report results.jsonl -o report

    tacache report main.jsonl ablation.jsonl -o report --pictures 100

    tacache report benchmarks/results/main.jsonl --into README.md
    """
    from tacache_lab.report.writing import fill_document, write_report

    changed = into and fill_document(results, into)
    target = out or (None if into else Path("report"))
    written = write_report(results, target, room=int(pictures * 2**20)) if target else []
    if as_json:
        return print_json({"files": [str(path) for path in written], "changed": bool(changed)})
    if into:
        say(f"{into} {'has new tables' if changed else 'is as it was measured'}")
    if target:
        say(f"{len(written)} files in {target}; look at {target / 'index.html'}")
