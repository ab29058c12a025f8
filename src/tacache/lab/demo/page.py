"""The demo as one page: what was drawn, numbers, curves and anchors; nothing is fetched."""

from pathlib import Path
from typing import NamedTuple

from tacache.lab.demo import telling
from tacache.lab.demo.record import ModelDemo, Picture
from tacache.lab.films import Film, film
from tacache.lab.pages import data_address, template
from tacache.plan import Plan
from tacache.plots import profile_svg
from tacache.profile import Profile
from tacache.storage.atomic import write_atomically


class Shown(NamedTuple):
    """A picture as a data address, its film where it moves, and its place beside the others."""

    picture: Picture
    name: str
    address: str
    film: Film | None
    line: int
    column: int


class Row(NamedTuple):
    """One prompt: its pictures, full steps first; a line a budget, a column a rule."""

    prompt: str
    pictures: list[Shown]


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
        telling=telling,
        profile=profile,
        rows=rows_of(made, folder),
        rules=len({one.rule for one in made.budgets[1:]}),
        wide=data_address("image/svg+xml", profile_svg(profile, plans).encode()),
        narrow=data_address("image/svg+xml", profile_svg(profile, plans, narrow=True).encode()),
    )
    return text


def rows_of(made: ModelDemo, folder: Path) -> list[Row]:
    """The pictures by prompt; they lie in the record plan by plan."""
    count = len(made.prompts)
    return [
        Row(prompt, [shown(made, one, folder) for one in made.pictures[i::count]])
        for i, prompt in enumerate(made.prompts)
    ]


def shown(made: ModelDemo, picture: Picture, folder: Path) -> Shown:
    """A picture, or a clip's film, as an address that needs no file; full steps come first."""
    file, fast = folder / picture.file, made.budgets[1:]
    moving = film(file)
    content = file.read_bytes() if moving is None else moving.content
    kind = file.suffix[1:] if moving is None else "png"
    rules = list(dict.fromkeys(one.rule for one in fast))
    budgets = list(dict.fromkeys(one.evaluations for one in fast))
    line, column = 0, 0
    if picture.rule is not None:
        line, column = budgets.index(picture.evaluations), 1 + rules.index(picture.rule)
    return Shown(
        picture,
        telling.name_of(picture.rule),
        data_address(f"image/{kind}", content),
        moving,
        1 + line,
        1 + column,
    )
