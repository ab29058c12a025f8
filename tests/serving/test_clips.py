"""Clips under load: jobs of several budgets and lengths at once, some of which go wrong."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")

from tests.serving.support import GENERATIONS, served, until
from tests.tiny import PIPELINES

from tacache.diffusers import applied
from tacache.diffusers.calls import pixels_of
from tacache.serving.app import make_app
from tacache.serving.worker import Worker

pytestmark = pytest.mark.slow

STEPS = 60
CALL = {
    "num_inference_steps": STEPS,
    "negative_prompt": "blurry",
    "height": 32,
    "width": 32,
    "num_frames": 5,
    "guidance_scale": 5.0,
    "max_sequence_length": 32,
}
BENT = 20.0  # by which velocities are larger: with another plan, a clip is plainly another one
WANTED = [  # frames, evaluations, and how the evaluations are asked for
    (5, 10, {"evaluations": 10}),
    (9, 25, {"evaluations": 25}),
    (5, 30, {"speedup": 2.0}),
    (13, 10, {"evaluations": 10}),
    (9, 18, {}),  # as the server does it by itself
    (5, STEPS, {"evaluations": STEPS}),
    (9, 40, {"evaluations": 40}),
]
WRONG = [
    (b'{"prompt": "a', 400),
    ({"prompt": "a fox", "frames": "many"}, 400),
    ({"prompt": "a fox", "frames": 5, "n": 2}, 400),
]


class Remembering(Worker):
    """A worker that keeps the frames of every file it has written: files have them with loss."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.frames = {}

    def _output(self, request, seed):
        made = super()._output(request, seed)
        self.frames[made.data] = pixels_of(request.result(0))
        return made


@pytest.fixture(scope="module")
def worker():
    pipe = PIPELINES["wan"].build()
    pipe.set_progress_bar_config(disable=True)
    with torch.no_grad():
        pipe.transformer.proj_out.weight *= BENT
    worker = Remembering(pipe, CALL, max_rows=4)
    worker.warm_up()
    return worker


@pytest.fixture(scope="module")
def client(worker):
    with served(make_app(worker, "tiny", makes_clips=True)) as client:
        yield client


def direct(worker, seed: int, frames: int, evaluations: int) -> np.ndarray:
    """The frames of a direct call of the pipeline, from 0 to 1."""
    run = worker._signature({"num_frames": frames})
    call = {**CALL, "num_frames": frames, "prompt": f"fox {seed}", "output_type": "np"}
    call["generator"] = torch.Generator().manual_seed(seed)
    plan = worker.budgets.offer(run, evaluations).plan
    if plan is None:
        return pixels_of(worker.pipe(**call))
    with applied(worker.pipe, plan):
        return pixels_of(worker.pipe(**call))


def off(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two clips, in levels of 255."""
    return float(np.abs(one - other).max()) * 255


def followed(client, path: str) -> list[tuple[str, dict]]:
    """All events of a job with their kinds, read as they come, up to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=600)
    connection.request("GET", f"{path}/events")
    answer, found, kind = connection.getresponse(), [], ""
    for line in answer:
        name, _, value = line.decode().strip().partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            found.append((kind, json.loads(value)))
    connection.close()
    return found


def begun(client, seed: int, frames: int, **how) -> str:
    """The path of a job that was taken on."""
    body = {"prompt": f"fox {seed}", "seed": seed, "frames": frames, **how}
    answer = client.post("/v1/jobs", body)
    assert answer.status == 202, answer.raw
    return answer.headers["location"]


def finished(client, seed: int, frames: int, how: dict) -> tuple[list[dict], bytes]:
    """What a client that comes back sees of its job, and the file in the end."""
    path, seen = begun(client, seed, frames, **how), []
    until(lambda: seen.append(client.get(path).body) or seen[-1]["status"] != "running", 300)
    assert seen[-1]["status"] == "done", seen[-1]
    result = client.get(f"{path}/result")
    assert result.headers["content-type"] == "video/mp4"
    return seen, result.raw


def streamed(client, seed: int, frames: int, how: dict) -> tuple[list[dict], bytes]:
    """The same of a client that follows the events."""
    path = begun(client, seed, frames, **how)
    events = followed(client, path)
    kinds = [kind for kind, _ in events]
    assert kinds == ["progress"] * (len(kinds) - 1) + ["done"]
    assert len(kinds) > 2
    return [body for _, body in events], client.get(f"{path}/result").raw


def stopped(client) -> dict:
    """A job that is cancelled after its first evaluations; whoever follows it is told."""
    path = begun(client, 100, 9, evaluations=STEPS)
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(followed, client, path)
        until(lambda: client.get(path).body["evaluations"]["made"] > 0, 300)
        body = client.send("DELETE", path).body
        assert following.result(60)[-1] == ("cancelled", body)
    assert client.get(f"{path}/result").status == 409
    assert client.get(path).body == body
    return body


def refused(client) -> None:
    """Jobs that nobody can make are answered at once, whatever else is going on."""
    for body, status in WRONG:
        assert client.post("/v1/jobs", body).status == status
    answer = client.post("/v1/jobs", {"prompt": "a fox", "evaluations": STEPS + 1})
    assert (answer.status, answer.error["param"]) == (400, "evaluations")
    assert client.post(GENERATIONS, {"prompt": "a fox"}).status == 404
    assert client.get("/v1/jobs/unknown/events").status == 404


def counted(client) -> dict[str, float]:
    names = ("done", "cancelled", "refused", "failed")
    found = {name: client.metric(f"requests_{name}") for name in names}
    return found | {name: client.metric(name) for name in ("evaluations", "rows", "batches")}


def test_jobs_of_several_lengths_and_budgets_at_once(client, worker):
    """Each gets its own clip; one is cancelled, one followed, some are nonsense."""
    before = counted(client)
    with ThreadPoolExecutor(len(WANTED) + 2) as threads:
        jobs = [
            threads.submit(streamed if i == 1 else finished, client, i, frames, how)
            for i, (frames, _, how) in enumerate(WANTED)
        ]
        cancelled, wrong = threads.submit(stopped, client), threads.submit(refused, client)
        found = [one.result(300) for one in jobs]
        gone = cancelled.result(300)
        wrong.result(300)
    check_clips(worker, [file for _, file in found])
    for (_, evaluations, _), (seen, _) in zip(WANTED, found, strict=True):
        check_progress([one["evaluations"] for one in seen], evaluations)
    assert gone["status"] == "cancelled"
    assert 0 < gone["evaluations"]["made"] < gone["evaluations"]["of"] == STEPS
    check_counts(client, before, gone["evaluations"]["made"])
    assert not worker.batcher._requests()
    until(lambda: not any("(_run)" in one.name for one in threading.enumerate()))  # of requests


def check_clips(worker, files: list[bytes]) -> None:
    """Every file holds the clip of a direct call, which differs plainly from all others."""
    import imageio.v3 as imageio

    clips = [direct(worker, i, *one[:2]) for i, one in enumerate(WANTED)]
    for i, (file, clip) in enumerate(zip(files, clips, strict=True)):
        frames, evaluations, _ = WANTED[i]
        assert off(worker.frames[file], clip) <= 1
        assert off(direct(worker, i, frames, evaluations // 2), clip) > 5  # by another plan
        shown = imageio.imread(file, extension=".mp4") / 255
        assert shown.shape == clip.shape == (frames, 32, 32, 3)
        others = [one for one in clips if one.shape == clip.shape]
        assert min(others, key=lambda one: np.abs(shown - one).mean()) is clip


def check_progress(seen: list[dict], evaluations: int) -> None:
    """It only grows, up to all evaluations that the job was to have."""
    made = [one["made"] for one in seen]
    assert made == sorted(made)
    assert {one["of"] for one in seen} == {evaluations}
    assert made[-1] == evaluations


def check_counts(client, before: dict[str, float], made: int) -> None:
    """Numbers add up to what was asked for, and nothing is left to do."""
    until(lambda: client.metric("requests_running") == 0)
    assert client.metric("evaluations_queued") == 0
    now = {name: n - before[name] for name, n in counted(client).items()}
    ends = {name: now[name] for name in ("done", "cancelled", "refused", "failed")}
    assert ends == {"done": len(WANTED), "cancelled": 1, "refused": 1, "failed": 0}
    of_the_cancelled = now["evaluations"] - sum(evaluations for _, evaluations, _ in WANTED)
    assert made <= of_the_cancelled < STEPS
    assert 0 <= now["rows"] - 2 * now["evaluations"] <= 2  # guidance is a call of its own
    assert now["batches"] < now["rows"]  # some were shared
