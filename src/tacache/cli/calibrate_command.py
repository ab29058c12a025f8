"""`tacache calibrate`: a profile from a model's full-step runs."""

from pathlib import Path
from typing import Annotated

import typer

from tacache import hosts
from tacache.cli import named_models
from tacache.cli.arguments import seeds_of
from tacache.cli.options import (
    CALLED,
    Count,
    FullCallOptions,
    Json,
    LoadOptions,
    Model,
    Prompts,
    Seeds,
)
from tacache.cli.printing import print_json, say, show
from tacache.cli.render import profile_view
from tacache.errors import TACacheError
from tacache.profile import Profile
from tacache.prompts import read_prompts


def calibrate(
    model: Model,
    *,
    prompts: Prompts = "calibration",
    count: Count = None,
    seeds: Seeds = "0",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The profile file (default: named after MODEL)."),
    ] = None,
    call: FullCallOptions,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples in one call.", rich_help_panel=CALLED)
    ] = 1,
    load: LoadOptions,
    as_json: Json = False,
) -> None:
    """Measure a model's full-step runs and write them to a profile.

    A run that was killed goes on where it stopped. Under torchrun or accelerate launch the
    processes share the prompts.

    [bold]Examples[/bold]

    tacache calibrate tiny-flux --count 8 -o tiny.profile.json

    tacache calibrate black-forest-labs/FLUX.1-dev --count 8 --guidance 3.5 -o flux.profile.json

    torchrun --nproc-per-node 4 -m tacache calibrate MODEL --prompts mine.txt -o m.profile.json

    tacache calibrate bagel --load bagel-path=Bagel --load weights=BAGEL-7B-MoT --guidance 4
    """
    from tacache.work.processes import Processes

    loading = load.checked(model)
    if batch_size != 1 and not named_models.kind_of(model).batches:
        raise TACacheError(f"{model} makes one picture a call: leave --batch-size")
    texts = read_prompts(named_models.prompts_of(model, prompts))[:count]
    target = Profile.check_target(out or Path(f"{Path(model).name}.profile.json"))
    kept = target.with_name(f"{target.name}.runs")
    arguments, samples = named_models.call_arguments(model, call), seeds_of(seeds)
    host = named_models.load(model, loading)
    with named_models.threads(model, host):
        profile = hosts.calibrate(
            host,
            texts,
            call=arguments,
            seeds=samples,
            batch_size=batch_size,
            resume=kept,
            progress=not as_json,
        )
    if Processes.current().rank == 0:
        _write_profile(profile, target, kept, as_json)


def _write_profile(profile: Profile, target: Path, kept: Path, as_json: bool) -> None:
    profile.save(target)
    kept.unlink(missing_ok=True)
    if as_json:
        return print_json({"file": str(target), **profile.model_dump()})
    show(profile_view(profile))
    budget = max(2, profile.steps // 4)
    say(f"Written to {target}; next: tacache plan {target} --evaluations {budget}")
