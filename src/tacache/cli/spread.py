"""`tacache generate --ray`: the outputs of a long list, made by several processes."""

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli import named_models
from tacache.cli.arguments import check_folder
from tacache.cli.printing import tell
from tacache.errors import TACacheError
from tacache.hosts import Request, file_stem
from tacache.models import shipped
from tacache.storage.atomic import write_atomically

Job = tuple[int, str, int]  # a prompt's number, its text and a seed
NOTE = ".tacache-ray.json"  # in the folder of outputs: what they were made with


@dataclass(frozen=True)
class RayOptions:
    """Whether other processes make the outputs, and how many."""

    PANEL: ClassVar = "Long lists"
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Make the outputs in several processes, on all GPUs that Ray finds; a run that "
            "was killed goes on with what is missing.",
        ),
    ] = False
    copies: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --ray: copies of the model (default: one for each GPU, at least one)."
        ),
    ] = None

    def check(self, out: Path, compare: bool, learn: int) -> None:
        """Refuse a folder that cannot be written to, and what several processes cannot do."""
        check_folder(out)
        if self.copies is not None and not self.ray:
            raise TACacheError("--copies is for --ray: give both")
        if self.ray and compare:
            raise TACacheError("--compare measures times, which --ray would mix: leave one out")
        if self.ray and learn:
            raise TACacheError("--learn is for one process: learn first, then use --ray")


def loaded(
    model: str,
    loading: dict[str, Any],
    options: dict[str, Any] | None,
    request: Request,
    out: Path,
) -> named_models.MakeOne:
    """Return what makes one output, in the process that calls this."""
    host = named_models.load(model, loading)
    if model in shipped() and host.pipe.device.type == "cpu":
        import torch

        torch.set_num_threads(1)  # as in one process
    if options is not None:
        named_models.accelerate(model, host, options)
    return named_models.generator(host, request, out)


def maker(
    spread: RayOptions,
    model: str,
    loading: dict[str, Any],
    options: dict[str, Any] | None,
    request: Request,
    out: Path,
    jobs: Sequence[Job],
) -> tuple[named_models.MakeOne, list[Job]]:
    """Return what gives the outputs one after another as Ray makes them, and those missing."""
    from tacache.serving.data import generate_all

    left = missing(out, jobs, request, [model, loading, options])
    load = functools.partial(loaded, model, loading, options, request, out.resolve())
    results = generate_all(load, left, copies=spread.copies)

    def next_one(i: int, text: str, seed: int) -> Any:
        result = next(results)
        if result.output is None:
            raise RuntimeError(result.error)
        return result.output.model_copy(update={"file": str(out / Path(result.output.file).name)})

    return next_one, left


def missing(out: Path, jobs: Sequence[Job], request: Request, settings: object) -> list[Job]:
    """Return the jobs without a file that an earlier run with the same settings has made."""
    plan = None if request.plan is None else request.plan.to_json()
    facts = [settings, plan, request.call, request.clip_suffix, request.fps]
    mark = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    note = out / NOTE
    text = json.dumps({"settings": mark})
    if not note.is_file() or note.read_text(encoding="utf-8") != text:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(note, text)
        for job in jobs:  # of other settings
            for path in _files(out, job, request):
                path.unlink(missing_ok=True)
        return list(jobs)
    left = [job for job in jobs if not any(path.is_file() for path in _files(out, job, request))]
    if len(left) < len(jobs):
        tell(f"{len(jobs) - len(left)} of {len(jobs)} outputs are there already")
    return left


def _files(out: Path, job: Job, request: Request) -> list[Path]:
    stem = file_stem(*job)
    return [out / f"{stem}{suffix}" for suffix in (".png", request.clip_suffix)]
