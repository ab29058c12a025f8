"""The HTTP application: OpenAI's images API, jobs with progress, health and metrics."""

import asyncio
import base64
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

import tacache
from tacache.serving.budgets import busy
from tacache.serving.guards import Guards
from tacache.serving.jobs import Jobs
from tacache.serving.prometheus import CONTENT_TYPE, metrics_text
from tacache.serving.protocol import (
    ImagesBody,
    JobBody,
    Kind,
    Limits,
    Refused,
    RequestBody,
    check_limits,
    parsed,
)
from tacache.serving.worker import Backend, OutputFile, Progress


def make_app(
    backend: Backend,
    model: str,
    *,
    limits: Limits | None = None,
    keys: Sequence[str] = (),
    makes_clips: bool = False,
) -> FastAPI:
    """Return the application that serves one model.

    Args:
        backend: What makes pictures or clips.
        model: The name that clients see.
        limits: How much one request may ask for, and how much may wait in all.
        keys: Those that clients may come with; without any, only this machine gets in.
        makes_clips: Whether the model makes clips, which are asked for as jobs.

    Returns:
        The application. Its `state.drain(seconds)` stops it: it takes on nothing more, and what is
        not finished by then is stopped. The end of its lifespan closes the backend.

    """
    limits = limits or Limits()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.jobs = Jobs(backend, limits)
        app.state.in_flight, app.state.is_draining = set(), False
        app.state.drain = functools.partial(_drain, app)
        yield
        await app.state.jobs.finish(0)
        await backend.close()

    app = FastAPI(
        title="TACache",
        version=tacache.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.backend, app.state.model, app.state.limits = backend, model, limits
    app.state.makes_clips = makes_clips
    app.add_middleware(Guards, keys=tuple(keys), most=limits.body)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    for path, method, route in ROUTES:
        app.add_api_route(path, route, methods=[method], **_documented(route))
    return app


async def generations(request: Request) -> Response:
    """Make pictures, as OpenAI's images API does."""
    if request.app.state.makes_clips:
        raise Refused("this model makes clips: ask for them with POST /v1/jobs", status=404)
    wanted = await _wanted(request, ImagesBody)
    outputs = await _unless_gone(request, _outputs(request.app.state.backend, wanted))
    if outputs is None:
        return Response(status_code=499)  # nobody reads it
    return JSONResponse(
        {"created": int(time.time()), "data": [_datum(output) for output in outputs]}
    )


async def routes(request: Request) -> Response:
    """List what there is to ask for."""
    there = [f"{method} {path}" for path, method, _ in ROUTES] + ["GET /openapi.json"]
    return JSONResponse({"model": request.app.state.model, "routes": there})


async def models(request: Request) -> Response:
    """Return the one model that is served, as OpenAI lists models."""
    model = {"id": request.app.state.model, "object": "model", "created": 0, "owned_by": "tacache"}
    return JSONResponse({"object": "list", "data": [model]})


async def start_job(request: Request) -> Response:
    """Take on a job."""
    wanted = await _wanted(request, JobBody)
    started = await request.app.state.jobs.start(wanted)
    return JSONResponse(started.body(), 202, {"Location": f"/v1/jobs/{started.id}"})


async def job(request: Request, name: str) -> Response:
    """Return how far a job is."""
    return JSONResponse(request.app.state.jobs.get(name).body())


async def cancel_job(request: Request, name: str) -> Response:
    """Stop a job."""
    job = request.app.state.jobs.get(name)
    await job.cancel()
    return JSONResponse(job.body())


async def job_events(request: Request, name: str) -> Response:
    """Return a job's progress as server-sent events, up to its end."""
    job = request.app.state.jobs.get(name)

    async def lines() -> AsyncIterator[str]:
        async for body in job.changes():
            if body is None:
                yield ": still running\n\n"
            else:
                kind = "progress" if body["status"] == "running" else body["status"]
                yield f"event: {kind}\ndata: {json.dumps(body)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def job_result(request: Request, name: str) -> Response:
    """Return the picture or clip of a job that is done."""
    job = request.app.state.jobs.get(name)
    if job.error is not None:
        raise job.error
    if job.output is None:
        raise Refused(f"the job has no result: it is {job.status}", status=409)
    return Response(job.output.data, media_type=job.output.media_type)


async def health(request: Request) -> Response:
    """Return whether requests can be answered."""
    try:
        await request.app.state.backend.check()
    except Exception as error:
        raise Refused(f"not ready: {error}", status=503, retry_after=5) from error
    return JSONResponse({"status": "ok", "model": request.app.state.model})


async def metrics(request: Request) -> Response:
    """Return counters and gauges for Prometheus."""
    text = metrics_text(await request.app.state.backend.snapshots())
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def _wanted(request: Request, kind: type[Kind]) -> Kind:
    """Return what a request asks for, within the limits."""
    if request.app.state.is_draining:
        raise busy("the server is stopping", 5)
    kind_sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind_sent != "application/json":
        raise Refused("send JSON, with Content-Type: application/json", status=415)
    wanted = parsed(kind, await request.body())
    assert isinstance(wanted, RequestBody)
    check_limits(wanted, request.app.state.limits, request.app.state.model)
    return wanted


async def _outputs(backend: Backend, wanted: RequestBody) -> tuple[OutputFile, ...]:
    async with contextlib.aclosing(backend.run(wanted)) as events:
        async for event in events:
            if not isinstance(event, Progress):
                return event
    raise Refused("the request ended without a result", status=500)


async def _unless_gone(request: Request, work: Any) -> Any:
    """Return what the work gives; None, with it cancelled, where the client goes away before."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    request.app.state.in_flight.add(working)
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.cancelled():
            raise busy("the server has stopped before the request was finished", 5)
        return working.result() if working.done() else None
    finally:
        request.app.state.in_flight.discard(working)
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _datum(output: OutputFile) -> dict[str, Any]:
    """Return a picture as OpenAI's API has it, and with what it can be made again."""
    return {
        "b64_json": base64.b64encode(output.data).decode(),
        "seed": output.seed,
        "evaluations": output.evaluations,
    }


async def _drain(app: FastAPI, seconds: float) -> None:
    """Take on nothing more, and give what there is so many seconds to finish; stop the rest."""
    app.state.is_draining = True
    jobs, pictures = app.state.jobs, set(app.state.in_flight)
    await asyncio.gather(jobs.finish(seconds), _finished(pictures, seconds))


async def _finished(tasks: set[asyncio.Task[Any]], seconds: float) -> None:
    """Wait for some tasks, and cancel those that are not done in so many seconds."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    wait = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse(error.body(), error.status, wait)


async def _http_error(request: Request, error: Exception) -> Response:
    """Return what the framework itself refuses, as an unknown path, in the same shape."""
    assert isinstance(error, HTTPException)
    refused = Refused(
        f"{error.detail}: {request.method} {request.url.path}; GET / lists what there is",
        status=error.status_code,
    )
    return JSONResponse(refused.body(), refused.status, _allowed(request, error.status_code))


def _allowed(request: Request, status: int) -> dict[str, str]:
    """Return the header that a wrong method is answered with: the ones that the path has."""
    if status != HTTPStatus.METHOD_NOT_ALLOWED:
        return {}
    known = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
    return {"Allow": ", ".join(sorted({m for route in known for m in route.methods or ()}))}


def _documented(route: Any) -> dict[str, Any]:
    """Return what the description of the API says of a route, whose answers are made by hand."""
    error = {"description": "What is wrong, in OpenAI's shape.", "content": _content(ERROR_SCHEMA)}
    documented: dict[str, Any] = {"responses": {"4XX": error, "5XX": error}}
    bodies: dict[Any, type[RequestBody]] = {generations: ImagesBody, start_job: JobBody}
    kind = bodies.get(route)
    if kind is not None:
        body = {"required": True, "content": _content(kind.model_json_schema())}
        documented["openapi_extra"] = {"requestBody": body}
    if route is start_job:
        documented["status_code"] = HTTPStatus.ACCEPTED
    media_types = MEDIA_TYPES.get(route)
    if media_types is not None:
        documented["response_class"] = Response
        documented["responses"][200] = {"content": {name: {} for name in media_types}}
    return documented


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
MEDIA_TYPES: dict[Any, tuple[str, ...]] = {  # of answers that are no JSON
    job_events: ("text/event-stream",),
    job_result: ("image/png", "video/mp4"),
    metrics: (CONTENT_TYPE,),
}
ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("/", "GET", routes),
    ("/v1/images/generations", "POST", generations),
    ("/v1/models", "GET", models),
    ("/v1/jobs", "POST", start_job),
    ("/v1/jobs/{name}", "GET", job),
    ("/v1/jobs/{name}", "DELETE", cancel_job),
    ("/v1/jobs/{name}/events", "GET", job_events),
    ("/v1/jobs/{name}/result", "GET", job_result),
    ("/healthz", "GET", health),
    ("/metrics", "GET", metrics),
)
