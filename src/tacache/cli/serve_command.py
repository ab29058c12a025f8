"""`tacache serve`: a model behind HTTP."""

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli import named_models
from tacache.cli.model_kinds import KINDS
from tacache.cli.options import CallOptions, LoadOptions, Pipeline, QualityOptions
from tacache.cli.printing import say, tell
from tacache.errors import TACacheError
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.models import makes_video, shipped

KEYS = "TACACHE_API_KEYS"


@dataclass(frozen=True)
class AccessOptions:
    """Who may ask, and for how much."""

    PANEL: ClassVar = "Who may ask, and for how much"
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A key that clients send; may be repeated. {KEYS}, with commas between keys, "
            "keeps them out of the list of processes."
        ),
    ] = None
    max_pictures: Annotated[int, typer.Option(min=1, help="The most pictures of one request.")] = 8
    max_side: Annotated[int, typer.Option(min=16, help="The most pixels of a width or height.")] = (
        2048
    )
    max_queued: Annotated[
        int, typer.Option(min=1, help="The most evaluations that wait; then clients get a 503.")
    ] = 20_000

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the option and of the environment."""
        keys = [*(self.api_key or []), *os.environ.get(KEYS, "").split(",")]
        return tuple(dict.fromkeys(key.strip() for key in keys if key.strip()))

    def limits(self) -> Any:
        """Return what one request may ask for."""
        from tacache.serving.protocol import Limits

        return Limits(pictures=self.max_pictures, side=self.max_side, queued=self.max_queued)


@dataclass(frozen=True)
class ReplicaOptions:
    """Where the model runs: in this process, or in processes that Ray starts."""

    PANEL: ClassVar = "Where the model runs"
    local: Annotated[
        bool, typer.Option("--local", help="Run in this process alone, without Ray.")
    ] = False
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|LEAST:MOST",
            help="Copies of the model; a range grows and shrinks with the evaluations that wait "
            "(default: one for each GPU).",
        ),
    ] = None
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs for each copy (default: 1, or 0 without GPUs)."),
    ] = None
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster to join (default: one on this machine).")
    ] = None
    dashboard: Annotated[bool, typer.Option(help="Start Ray's dashboard as well.")] = False

    def check(self) -> None:
        """Refuse options of Ray where it is not used."""
        if self.local and (self.replicas or self.gpus is not None or self.address):
            raise TACacheError("--replicas, --gpus and --address are for Ray: leave --local out")


@dataclass(frozen=True)
class BatchOptions:
    """How requests share evaluations."""

    PANEL: ClassVar = "How requests share evaluations"
    max_rows: Annotated[
        int, typer.Option(min=1, help="How many samples one evaluation may have.")
    ] = 16
    graphs: Annotated[
        bool,
        typer.Option(
            help="Replay small evaluations from CUDA graphs, which takes some memory of a GPU."
        ),
    ] = True


def serve(
    model: Pipeline,
    *,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
    speedup: Annotated[
        float | None,
        typer.Option(
            help="The speedup of requests that ask for no speed or quality; 1 runs all steps "
            "(default: as many evaluations as keep pictures near to the full run's, by its steps)."
        ),
    ] = None,
    drain: Annotated[
        float, typer.Option(min=1, help="Seconds to finish requests when it is told to stop.")
    ] = 60.0,
    quality: QualityOptions,
    where: ReplicaOptions,
    served: AccessOptions,
    sharing: BatchOptions,
    call: CallOptions,
    load: LoadOptions,
) -> None:
    """Serve a model over HTTP: requests share its evaluations, whatever their plans are.

    [bold]Examples[/bold]

    tacache serve tiny-flux --local --port 8000

    tacache serve black-forest-labs/FLUX.1-dev --replicas 1:8

    curl localhost:8000/v1/images/generations -H 'Content-Type: application/json' -d
    '{"prompt": "a red apple", "speedup": 4}'

    tacache serve tiny-flux --local --like-steps 50

    curl localhost:8000/v1/images/generations -H 'Content-Type: application/json' -d
    '{"prompt": "a red apple", "min_psnr": 35}'
    """
    if model in KINDS:
        raise TACacheError(f"a server runs pipelines of diffusers, and {model} is none")
    import_server()
    from tacache.serving.app import make_app
    from tacache.serving.http_server import bound, check_address, opened, run_app

    loading, keys, limits = load.checked(model), served.keys(), served.limits()
    where.check()
    check_address(host, keys)
    usual = AccelerateOptions(speedup=speedup, **quality.options())
    made_by = {"call": named_models.call_arguments(model, call), "usual": usual}
    made_by |= {"max_rows": sharing.max_rows, "use_graphs": sharing.graphs}
    clips = shipped()[model].fps is not None if model in shipped() else makes_video(model)
    with bound(host, port) as listening:
        backend = _backend(model, loading, where, {**made_by, "limits": limits, "drain_s": drain})
        app = make_app(backend, model, limits=limits, keys=keys, makes_clips=clips)
        say(f"{model} is served at {opened(listening)}")
        sys.stdout.flush()
        run_app(app, listening, drain_s=drain)
    tell("tacache: stopped")


def import_server() -> None:
    """Say which extra is missing before a model is loaded."""
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401


def _backend(
    model: str, loading: dict[str, Any], where: ReplicaOptions, options: dict[str, Any]
) -> Any:
    """Load the model here, or have Ray load it."""
    from tacache.serving.model_source import ModelSource

    source = ModelSource(model, loading, **options)
    if where.local:
        return source.worker()
    from tacache.serving.replicas import RayBackend

    return RayBackend.start(
        source,
        replicas=where.replicas,
        gpus=where.gpus,
        address=where.address,
        dashboard=where.dashboard,
    )
