"""The HTTP application: OpenAI's images API, jobs with progress, health and metrics."""

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from tacache.serving.backend import Backend
from tacache.serving.guards import Guards
from tacache.serving.jobs import Jobs
from tacache.serving.metrics import CONTENT_TYPE, metrics_text
from tacache.serving.wanted import (
    Kind,
    Limits,
    Refused,
    Wanted,
    WantedJob,
    WantedPictures,
    check_limits,
    parsed,
)
from tacache.serving.worker import Output, Progress


def make_app(
    backend: Backend,
    model: str,
    *,
    limits: Limits | None = None,
    keys: Sequence[str] = (),
    makes_clips: bool = False,
    drain_s: float = 60.0,
) -> FastAPI:
    """The application that serves one model; `keys` are those that clients may come with.

    When it stops, it gives its jobs `drain_s` seconds and closes the backend.
    """
    limits = limits or Limits()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.jobs = Jobs(backend, limits)
        yield
        await app.state.jobs.finish(drain_s)
        await backend.close()

    app = FastAPI(
        title="TACache", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None
    )
    app.state.backend, app.state.model, app.state.limits = backend, model, limits
    app.state.makes_clips = makes_clips
    app.add_middleware(Guards, keys=tuple(keys), most=limits.body)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_api_route("/v1/images/generations", generations, methods=["POST"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/jobs", start_job, methods=["POST"])
    app.add_api_route("/v1/jobs/{name}", job, methods=["GET"])
    app.add_api_route("/v1/jobs/{name}", cancel_job, methods=["DELETE"])
    app.add_api_route("/v1/jobs/{name}/events", job_events, methods=["GET"])
    app.add_api_route("/v1/jobs/{name}/result", job_result, methods=["GET"])
    app.add_api_route("/healthz", health, methods=["GET"])
    app.add_api_route("/metrics", metrics, methods=["GET"])
    return app


async def generations(request: Request) -> Response:
    """Make pictures, as OpenAI's images API does."""
    if request.app.state.makes_clips:
        raise Refused("this model makes clips: ask for them with POST /v1/jobs", status=404)
    wanted = await _wanted(request, WantedPictures)
    outputs = await _unless_gone(request, _outputs(request.app.state.backend, wanted))
    if outputs is None:
        return Response(status_code=499)  # nobody reads it
    return JSONResponse({"created": int(time.time()), "data": [_datum(one) for one in outputs]})


async def models(request: Request) -> Response:
    """The one model that is served, as OpenAI lists models."""
    one = {"id": request.app.state.model, "object": "model", "created": 0, "owned_by": "tacache"}
    return JSONResponse({"object": "list", "data": [one]})


async def start_job(request: Request) -> Response:
    """Take on a job."""
    wanted = await _wanted(request, WantedJob)
    started = await request.app.state.jobs.start(wanted)
    return JSONResponse(started.body(), 202, {"Location": f"/v1/jobs/{started.id}"})


async def job(request: Request, name: str) -> Response:
    """How far a job is."""
    return JSONResponse(request.app.state.jobs.get(name).body())


async def cancel_job(request: Request, name: str) -> Response:
    """Stop a job."""
    found = request.app.state.jobs.get(name)
    await found.cancel()
    return JSONResponse(found.body())


async def job_events(request: Request, name: str) -> Response:
    """A job's progress as server-sent events, up to its end."""
    found = request.app.state.jobs.get(name)

    async def lines() -> AsyncIterator[str]:
        async for body in found.changes():
            if body is None:
                yield ": still running\n\n"
            else:
                kind = "progress" if body["status"] == "running" else body["status"]
                yield f"event: {kind}\ndata: {json.dumps(body)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def job_result(request: Request, name: str) -> Response:
    """The picture or clip of a job that is done."""
    found = request.app.state.jobs.get(name)
    if found.error is not None:
        raise found.error
    if found.output is None:
        raise Refused(f"the job has no result: it is {found.status}", status=409)
    return Response(found.output.data, media_type=found.output.media_type)


async def health(request: Request) -> Response:
    """Whether requests can be answered."""
    try:
        await request.app.state.backend.check()
    except Exception as error:
        raise Refused(f"not ready: {error}", status=503, retry_after=5) from error
    return JSONResponse({"status": "ok", "model": request.app.state.model})


async def metrics(request: Request) -> Response:
    """Counters and gauges for Prometheus."""
    text = metrics_text(await request.app.state.backend.snapshots())
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def _wanted(request: Request, kind: type[Kind]) -> Kind:
    """What a request asks for, within the limits."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused("send JSON, with Content-Type: application/json", status=415)
    wanted = parsed(kind, await request.body())
    assert isinstance(wanted, Wanted)
    check_limits(wanted, request.app.state.limits, request.app.state.model)
    return wanted


async def _outputs(backend: Backend, wanted: Wanted) -> tuple[Output, ...]:
    async with contextlib.aclosing(backend.run(wanted)) as events:
        async for event in events:
            if not isinstance(event, Progress):
                return event
    raise Refused("the request ended without a result", status=500)


async def _unless_gone(request: Request, work: Any) -> Any:
    """What the work gives; None, with the work cancelled, where the client goes away before."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _datum(output: Output) -> dict[str, Any]:
    """A picture as OpenAI's API has it, and with what it can be made again."""
    return {
        "b64_json": base64.b64encode(output.data).decode(),
        "seed": output.seed,
        "evaluations": output.evaluations,
    }


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    wait = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse(error.body(), error.status, wait)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses, as an unknown path, in the same shape."""
    assert isinstance(error, HTTPException)
    there_is = "see docs/how-to/serve.md for what there is"
    refused = Refused(f"{error.detail}: {request.method} {request.url.path}; {there_is}",
                      status=error.status_code)  # fmt: skip
    return JSONResponse(refused.body(), refused.status)
