"""What a user of a model looks up: `python -m tests.docs.models` makes the tables anew.

`docs/reference/models.json` has what no code says. Steps and guidance are the defaults of the
pipeline's class where the file has none, evaluations are the library's own default, and what was
tried is read off the page of pipelines and the records of full size.
"""

import inspect
import json
import re
from functools import cache
from typing import Any, Literal, get_args

import diffusers
from pydantic import TypeAdapter
from tests.docs.readme import README, RESULTS, ROOT
from tests.tiny import prompted

from tacache.diffusers.stepping import check_flow_scheduler
from tacache.errors import HostError
from tacache.instant import default_evaluations
from tacache.storage.files import Frozen

DATA = ROOT / "docs/reference/models.json"
PAGE = ROOT / "docs/reference/models.md"
PIPELINES = ROOT / "docs/reference/pipelines.md"
TABLE = re.compile(r"(?<=<!-- models: begin -->\n).*?(?=<!-- models: end -->)", re.DOTALL)
HEAD = (
    "| model | makes | steps | guidance | passes a step | evaluations | fewer by | tried "
    "| pipeline | to know |"
)
SHORT_HEAD = "| model | makes | steps | evaluations | fewer by |"
Product = Literal["pictures", "clips", "clips with sound", "music"]


class CatalogueEntry(Frozen):
    """A model as the data file has it; None where the pipeline's class says it."""

    model: str
    hub: str
    pipeline: str
    makes: Product
    passes: int
    steps: int | None = None
    guidance: float | None = None
    arguments: str = ""
    full_size: str | None = None  # its name in the records of full size
    scheduler: str | None = None  # that comes with it, where the class is told of several
    readme: bool = False


class ClassDefaults(Frozen):
    """What a pipeline takes where its call says nothing."""

    steps: int | None
    guidance: float | None


def catalogue() -> list[CatalogueEntry]:
    """Return every model of the data file."""
    return TypeAdapter(list[CatalogueEntry]).validate_json(DATA.read_text(encoding="utf-8"))


def defaults(pipeline: str) -> ClassDefaults:
    """Return the steps and the guidance that a class of diffusers has by default."""
    kind = getattr(diffusers, pipeline)
    own = _of_blocks(kind) if issubclass(kind, diffusers.ModularPipeline) else _of_call(kind)
    guidance = (own.get(name) for name in ("guidance_scale", "true_cfg_scale"))
    return ClassDefaults(
        steps=own.get("num_inference_steps"),
        guidance=next((value for value in guidance if value is not None), None),
    )


def _of_call(kind: type) -> dict[str, Any]:
    parameters = inspect.signature(kind.__call__).parameters
    return {name: given.default for name, given in parameters.items()}


def _of_blocks(kind: type) -> dict[str, Any]:
    """Return the defaults of a modular pipeline: of its blocks' inputs, and of its guider."""
    blocks = getattr(diffusers, kind.default_blocks_name)()
    guider = (part.config for part in blocks.expected_components if part.name == "guider")
    return {one.name: one.default for one in blocks.inputs} | dict(next(guider, None) or {})


def steps_of(entry: CatalogueEntry) -> int:
    """Return the steps of a model's full run."""
    steps = entry.steps or defaults(entry.pipeline).steps
    assert steps, f"{entry.model}: the class has no default steps, so models.json needs some"
    return steps


def guidance_of(entry: CatalogueEntry) -> str:
    """Return the guidance of a model, or that it has none."""
    given = defaults(entry.pipeline).guidance if entry.guidance is None else entry.guidance
    assert given is not None, f"{entry.model}: the class has no guidance, so models.json needs it"
    return "none" if given <= 1 else f"{given:g}"


@cache
def tried_tiny() -> dict[str, str]:
    """Return what the page of pipelines says of the classes it has tried: tiny, or refused."""
    rows = re.findall(r"^\| (\w+Pipeline) \|(.*)$", PIPELINES.read_text("utf-8"), re.MULTILINE)
    verdicts = {"| yes | yes |": "tiny", "| refused:": "refused"}
    return {
        name: verdict
        for name, row in reversed(rows)
        for cells, verdict in verdicts.items()
        if cells in row
    }


@cache
def tried_large() -> set[str]:
    """Return the models whose whole runs were timed at full size."""
    lines = (RESULTS / "fullsize.jsonl").read_text(encoding="utf-8").splitlines()
    runs = (json.loads(line) for line in lines)
    return {run["model"] for run in runs if run["what"] == "run" and "error" not in run}


def tried(entry: CatalogueEntry) -> str:
    """Return what was run of a model: its class with tiny weights, and the speed of a large one."""
    if is_refused(entry):
        return "refused"
    unnamed = "by its recipe" if entry.pipeline in prompted.PIPELINES else "not"
    tiny = tried_tiny().get(entry.pipeline, unnamed)
    return "tiny, full size" if entry.full_size in tried_large() else tiny


def is_refused(entry: CatalogueEntry) -> bool:
    """Return whether no plan goes into a model: into its class, or into its own scheduler."""
    if entry.scheduler is None:
        return tried_tiny().get(entry.pipeline) == "refused"
    try:
        check_flow_scheduler(getattr(diffusers, entry.scheduler)())
    except HostError:
        return True
    return False


def gain_of(entry: CatalogueEntry) -> tuple[str, str]:
    """Return the evaluations by default and how many fewer they are, as cells of a table."""
    if is_refused(entry):
        return "-", "-"
    steps, evaluations = steps_of(entry), default_evaluations(steps_of(entry))
    return f"{evaluations}", f"{steps / evaluations:.1f}x"


def row(entry: CatalogueEntry) -> str:
    """Return the line of a model on the page."""
    cells = [
        f"[{entry.model}](https://huggingface.co/{entry.hub})",
        entry.makes,
        f"{steps_of(entry)}",
        guidance_of(entry),
        f"{entry.passes}",
        *gain_of(entry),
        tried(entry),
        f"`{entry.pipeline}`",
        entry.arguments,
    ]
    return f"| {' | '.join(cells)} |"


def short_row(entry: CatalogueEntry) -> str:
    """Return the line of a model in README."""
    cells = [entry.model, entry.makes, f"{steps_of(entry)}", *gain_of(entry)]
    return f"| {' | '.join(cells)} |"


def lines(head: str, rows: list[str]) -> str:
    """Return a table of Markdown."""
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows]) + "\n"


def table() -> str:
    """Return the table of the page, ordered as the file is within each kind of output."""
    entries = sorted(catalogue(), key=lambda entry: get_args(Product).index(entry.makes))
    return lines(HEAD, [row(entry) for entry in entries])


def short_table() -> str:
    """Return the table of README."""
    return lines(SHORT_HEAD, [short_row(entry) for entry in catalogue() if entry.readme])


def main() -> None:
    """Write the tables into the page and into README."""
    for file, content in ((PAGE, table()), (README, short_table())):
        text = file.read_text(encoding="utf-8")
        file.write_text(TABLE.sub(lambda _, content=content: content, text), encoding="utf-8")


if __name__ == "__main__":
    main()
