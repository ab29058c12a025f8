"""The demo as one page: what was drawn, numbers, curves and anchors; nothing is fetched."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tacache.plan import Plan
from tacache.plots import profile_svg
from tacache.profile import Profile
from tacache.storage.atomic import write_atomically
from tacache_lab.demo import telling
from tacache_lab.demo.measured import Measured
from tacache_lab.demo.questions import about_the_mean, instant_ahead, questions
from tacache_lab.demo.record import RULES, Budget, DemoPicture, ModelDemo
from tacache_lab.demo.strip import BRIGHTER, write_strip
from tacache_lab.films import Film, film
from tacache_lab.pages import data_address, template

Columns = Mapping[str | None, int]  # of rules; full steps stand in the first


class Shown(NamedTuple):
    """A picture as a data address, its film where it moves, and its column beside the others."""

    picture: DemoPicture
    name: str
    address: str
    film: Film | None
    column: int


class PromptRow(NamedTuple):
    """One prompt: its pictures, full steps first, and what is to be said of them."""

    prompt: str
    pictures: list[Shown]
    remarks: dict[int, str]  # by budget


class ColumnHead(NamedTuple):
    """What stands above the pictures of one rule: its figures here and over more prompts."""

    budget: Budget
    name: str
    column: int
    anchors: tuple[int, ...]
    steps: int
    more: Measured | None


class PagePart(NamedTuple):
    """One number of steps of the demo: column heads, and a row a prompt."""

    result: ModelDemo
    columns: int
    heads: list[ColumnHead]
    rows: list[PromptRow]
    fitted: bool  # whether a fitted plan was drawn


def write_page(result: ModelDemo, folder: Path) -> Path:
    """Write index.html beside the demo's files; everything it shows is inside."""
    target = folder / "index.html"
    write_atomically(target, page(result, folder))
    return target


def page(result: ModelDemo, folder: Path) -> str:
    """Return the page's text, from the demo's record and the files it names."""
    profile = Profile.load(folder / result.profile)
    plans = [Plan.load(folder / budget.plan) for budget in result.budgets if budget.plan]
    text: str = template("tacache_lab.demo", "page.html", "demo").render(
        result=result,
        telling=telling,
        questions=questions(result),
        about_the_mean=about_the_mean,
        parts=[part_of(run, folder) for run in result.all_runs()],
        profile=profile,
        brighter=BRIGHTER,
        wide=data_address("image/svg+xml", profile_svg(profile, plans).encode()),
        narrow=data_address("image/svg+xml", profile_svg(profile, plans, narrow=True).encode()),
    )
    return text


def part_of(result: ModelDemo, folder: Path) -> PagePart:
    """Return what the page shows of one number of steps."""
    drawn = {budget.rule for budget in result.budgets}
    columns: Columns = {
        rule: 2 + n for n, rule in enumerate(rule for rule in RULES if rule in drawn)
    }
    heads = [head(result, budget, columns, folder) for budget in result.budgets[1:]]
    rows = rows_of(result, columns, folder)
    return PagePart(result, 1 + len(columns), heads, rows, "fitted" in drawn)


def head(result: ModelDemo, budget: Budget, columns: Columns, folder: Path) -> ColumnHead:
    """Return a column's head: plain steps evaluate all of the few steps that they have."""
    plan = Plan.load(folder / budget.plan) if budget.plan else None
    every = tuple(range(budget.evaluations))
    return ColumnHead(
        budget,
        telling.name_of(budget.rule),
        columns[budget.rule],
        every if plan is None else plan.anchors,
        budget.evaluations if plan is None else plan.steps,
        result.known(str(budget.rule), budget.evaluations),
    )


def rows_of(result: ModelDemo, columns: Columns, folder: Path) -> list[PromptRow]:
    """Return the pictures by prompt; they lie in the record plan by plan."""
    count = len(result.prompts)
    return [
        PromptRow(
            prompt,
            [shown(picture, columns, folder) for picture in result.pictures[i::count]],
            instant_ahead(result, prompt),
        )
        for i, prompt in enumerate(result.prompts)
    ]


def shown(picture: DemoPicture, columns: Columns, folder: Path) -> Shown:
    """Return a picture, or a clip's film, as an address that needs no file."""
    file = folder / picture.file
    moving = film(file)
    content = file.read_bytes() if moving is None else moving.content
    kind = file.suffix[1:] if moving is None else "png"
    return Shown(
        picture,
        telling.name_of(picture.rule),
        data_address(f"image/{kind}", content),
        moving,
        columns.get(picture.rule, 1),
    )


def write_files(result: ModelDemo, out: Path) -> None:
    """Write all of them; the record comes first, and says that the others are a demo's."""
    write_atomically(out / "demo.json", result.model_dump_json(indent=2) + "\n")
    write_atomically(out / "table.md", telling.markdown(result))
    write_strip(result, out)
    write_page(result, out)
