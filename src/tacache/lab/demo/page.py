"""The demo as one page: what was drawn, numbers, curves and anchors; nothing is fetched."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tacache.lab.demo.run import Budget, ModelDemo, Picture
from tacache.lab.films import Film, film
from tacache.lab.pages import data_address, template
from tacache.plan import Plan
from tacache.plots import profile_svg
from tacache.profile import Profile
from tacache.storage.atomic import write_atomically


class Shown(NamedTuple):
    """A picture as a data address, and its film where it moves."""

    address: str
    film: Film | None


class Row(NamedTuple):
    """One prompt: its pictures by budget, full steps first."""

    prompt: str
    pictures: list[tuple[Picture, Shown]]


def write_page(made: ModelDemo, folder: Path) -> Path:
    """Write index.html beside the demo's files; everything it shows is inside."""
    target = folder / "index.html"
    write_atomically(target, page(made, folder))
    return target


def page(made: ModelDemo, folder: Path) -> str:
    """The page's text, from the demo's record and the files it names."""
    profile = Profile.load(folder / made.profile)
    plans = [Plan.load(folder / budget.plan) for budget in made.budgets if budget.plan]
    text: str = template("tacache.lab.demo", "page.html", "demo").render(
        made=made,
        best=best_of(made.budgets),
        profile=profile,
        rows=rows_of(made, folder),
        wide=data_address("image/svg+xml", profile_svg(profile, plans).encode()),
        narrow=data_address("image/svg+xml", profile_svg(profile, plans, narrow=True).encode()),
    )
    return text


def best_of(budgets: Sequence[Budget]) -> Budget:
    """The fastest budget, for the page's first sentence."""
    return min(budgets, key=lambda budget: budget.evaluations)


def rows_of(made: ModelDemo, folder: Path) -> list[Row]:
    """The pictures by prompt; they lie in the record budget by budget."""
    count = len(made.prompts)
    return [
        Row(prompt, [(one, shown(folder / one.file)) for one in made.pictures[i::count]])
        for i, prompt in enumerate(made.prompts)
    ]


def shown(file: Path) -> Shown:
    """A picture, or a clip's film, as an address that needs no file."""
    moving = film(file)
    content = file.read_bytes() if moving is None else moving.content
    kind = file.suffix[1:] if moving is None else "png"
    return Shown(data_address(f"image/{kind}", content), moving)
