"""Many clients at once: every one gets its own right picture, whatever happens to others."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")

from tests.serving.support import (
    CALL,
    GENERATIONS,
    STEPS,
    Client,
    drawn,
    same_picture,
    served,
    until,
)

from tacache.instant import LIKE_STEPS, instant_plan
from tacache.serving.app import make_app
from tacache.serving.protocol import Limits
from tacache.serving.worker import Worker

pytestmark = pytest.mark.slow

BUDGETS = (4, 6, 9)


@pytest.fixture(scope="module")
def worker(pipe):
    worker = Worker(pipe, CALL, max_rows=8)
    worker.warm_up()
    return worker


@pytest.fixture(scope="module")
def client(worker):
    with served(make_app(worker, "tiny")) as client:
        yield client


def plan_of(worker, evaluations):
    run = worker._signature({})
    return None if evaluations == STEPS else instant_plan(run.times, evaluations)


def killed(client: Client, body: dict) -> None:
    """Send a request, and go away before it is answered."""
    text = json.dumps(body).encode()
    head = f"POST {GENERATIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        until(lambda: client.metric("evaluations_queued") > 0)


def cancelled(client: Client, body: dict) -> str:
    job = client.post("/v1/jobs", body).body
    return client.send("DELETE", f"/v1/jobs/{job['id']}").body["status"]


def test_twenty_clients_with_three_budgets(client, pipe, worker):
    """One cancels, one sends nonsense, one is killed: nobody else notices."""
    bodies = [
        {"prompt": f"a fox number {i}", "seed": i, "evaluations": BUDGETS[i % 3]} for i in range(20)
    ]
    before = {name: client.metric(f"requests_{name}") for name in ("done", "cancelled")}
    slow = {"prompt": "nobody waits for it", "n": 8, "evaluations": STEPS}
    with ThreadPoolExecutor(23) as threads:
        answers = [threads.submit(client.post, GENERATIONS, body) for body in bodies]
        dead = threads.submit(killed, client, slow)
        stopped = threads.submit(cancelled, client, {"prompt": "x", "evaluations": STEPS})
        wrong = threads.submit(client.post, GENERATIONS, b'{"prompt": "a')
        found = [one.result(300) for one in answers]
        dead.result(300)
        assert stopped.result(300) in ("cancelled", "done")
        assert wrong.result(300).status == 400
    for body, answer in zip(bodies, found, strict=True):
        assert answer.status == 200, answer.raw
        (picture,) = answer.pictures()
        assert answer.body["data"][0]["evaluations"] == body["evaluations"]
        plan = plan_of(worker, body["evaluations"])
        assert same_picture(picture, drawn(pipe, plan, body["prompt"], body["seed"]))
    until(lambda: client.metric("evaluations_queued") == 0)
    assert client.metric("requests_running") == 0
    done = client.metric("requests_done") - before["done"]
    gone = client.metric("requests_cancelled") - before["cancelled"]
    assert done + gone == 22
    assert client.metric("rows") > client.metric("batches")  # some shared one


def test_a_client_that_goes_away_frees_its_rows(client):
    before = client.metric("requests_cancelled")
    killed(client, {"prompt": "x", "n": 8, "evaluations": STEPS})
    until(lambda: client.metric("requests_cancelled") == before + 1)
    until(lambda: client.metric("evaluations_queued") == 0)


def test_pictures_of_one_request_have_seeds_that_count_on(client, pipe, worker):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "n": 3, "seed": 7, "evaluations": 4})
    assert [one["seed"] for one in answer.body["data"]] == [7, 8, 9]
    for i, picture in enumerate(answer.pictures()):
        assert same_picture(picture, drawn(pipe, plan_of(worker, 4), "a fox", 7 + i))


def test_another_size_is_made_in_that_size(client, pipe, worker):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "seed": 1, "size": "64x32", "speedup": 2})
    (picture,) = answer.pictures()
    assert picture.shape == (32, 64, 3)
    plan = instant_plan(worker._signature({"width": 64, "height": 32}).times, 6)
    assert same_picture(picture, drawn(pipe, plan, "a fox", 1, width=64))


def test_a_quality_is_asked_for_over_http(client, pipe, worker):
    """By an instant plan with times of its own; for a PSNR, of which nothing is known, in full."""
    answer = client.post(GENERATIONS, {"prompt": "a fox", "seed": 1, "like_steps": 10})
    plan = instant_plan(worker._signature({}).times, LIKE_STEPS[10], target="flow")
    assert [one["evaluations"] for one in answer.body["data"]] == [LIKE_STEPS[10]]
    assert same_picture(answer.pictures()[0], drawn(pipe, plan, "a fox", 1))
    answer = client.post(GENERATIONS, {"prompt": "a fox", "seed": 1, "min_psnr": 35, "n": 2})
    assert [one["evaluations"] for one in answer.body["data"]] == [STEPS, STEPS]
    refused = client.post(GENERATIONS, {"prompt": "a fox", "min_psnr": 35, "like_steps": 10})
    assert (refused.status, refused.error["param"]) == (400, "min_psnr")


def test_a_job_tells_its_progress_and_keeps_its_result(client, pipe, worker):
    job = client.post("/v1/jobs", {"prompt": "a fox", "seed": 3, "evaluations": 9})
    assert job.status == 202
    path = f"/v1/jobs/{job.body['id']}"
    events = [part for part in client.get(f"{path}/events").raw.decode().split("\n\n") if part]
    kinds = [event.split("\n")[0] for event in events]
    assert kinds[-1] == "event: done"
    assert set(kinds[:-1]) <= {"event: progress"}
    made = [json.loads(event.split("data: ")[1])["evaluations"] for event in events]
    assert made[-1] == {"made": 9, "of": 9}
    assert [one["made"] for one in made] == sorted(one["made"] for one in made)
    result = client.get(f"{path}/result")
    assert result.headers["content-type"] == "image/png"
    assert client.get(path).body["status"] == "done"


def test_frames_are_refused_by_a_model_that_makes_pictures(client):
    answer = client.post("/v1/jobs", {"prompt": "a fox", "frames": 5})
    assert answer.status == 400
    assert "num_frames" in answer.error["message"]


def test_a_deadline_that_nothing_meets_is_refused(client):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "deadline_s": 1e-6})
    assert answer.status == 400
    assert answer.error["param"] == "deadline_s"


def test_a_deadline_far_off_takes_all_steps(client):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "deadline_s": 600})
    assert answer.body["data"][0]["evaluations"] == STEPS


def test_a_full_queue_says_when_to_come_again(client, worker, monkeypatch):
    monkeypatch.setattr(worker, "limits", Limits(queued=5))
    before = client.metric("requests_refused")
    answer = client.post(GENERATIONS, {"prompt": "a fox", "evaluations": 6})
    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert client.metric("requests_refused") == before + 1


def test_an_error_of_the_model_is_told_and_stays_that_of_its_request(client, worker, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(worker.pipe.text_encoder, "forward", fail)
    answer = client.post(GENERATIONS, {"prompt": "a fox", "evaluations": 4})
    assert (answer.status, "server's log says why" in answer.error["message"]) == (500, True)
    assert "out of luck" not in str(answer.error)  # what is inside stays there
    monkeypatch.undo()
    assert client.post(GENERATIONS, {"prompt": "a fox", "evaluations": 4}).status == 200


def test_threads_do_not_stay(client):
    before = threading.active_count()
    for i in range(5):
        client.post(GENERATIONS, {"prompt": f"fox {i}", "evaluations": 4})
    until(lambda: threading.active_count() <= before + 1)
