"""The HTTP application over a backend that makes nothing: what it lets in, and how it answers."""

import asyncio
import json

import pytest

pytest.importorskip("fastapi")

from tests.serving.support import GENERATIONS, served, until

import tacache
from tacache.serving.app import make_app
from tacache.serving.protocol import Limits, Refused
from tacache.serving.worker import OutputFile, Progress

PICTURE = b"\x89PNG"


class Canned:
    """A backend that answers by the prompt it is given."""

    def __init__(self):
        self.ended, self.closed, self.ready = [], False, True

    async def run(self, wanted):
        """What the prompt says."""
        try:
            if wanted.prompt == "busy":
                raise Refused("too much", status=503, code="overloaded", retry_after=7)
            yield Progress(0, 2)
            if wanted.prompt == "never":
                await asyncio.sleep(600)
            if wanted.prompt == "fails":
                await asyncio.sleep(0.05)
                raise Refused("the model failed", status=500)
            yield Progress(2, 2)
            yield tuple(
                OutputFile(PICTURE, "image/png", wanted.seed + i, 2) for i in range(wanted.pictures)
            )
        finally:
            self.ended.append(wanted.prompt)

    async def check(self):
        """Fail while it is not ready."""
        if not self.ready:
            raise RuntimeError("loading")

    async def snapshots(self):
        """Some numbers."""
        return {"local": {"batches": 3, "evaluations_queued": 5}}

    async def close(self):
        """Note that it was closed."""
        self.closed = True


@pytest.fixture
def backend():
    return Canned()


@pytest.fixture
def client(backend):
    with served(make_app(backend, "tiny", limits=Limits(body=1000, jobs=2))) as client:
        yield client
    assert backend.closed


@pytest.fixture
def guarded(backend):
    with served(make_app(backend, "tiny", keys=["first", "second"])) as client:
        yield client


def test_pictures_come_as_openai_sends_them(client):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "n": 2, "seed": 5})
    assert answer.status == 200
    assert isinstance(answer.body["created"], int)
    assert [one["seed"] for one in answer.body["data"]] == [5, 6]
    assert answer.body["data"][0]["b64_json"] == "iVBORw=="


def test_a_busy_server_says_when_to_come_again(client):
    answer = client.post(GENERATIONS, {"prompt": "busy"})
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert answer.error["code"] == "overloaded"
    assert client.post("/v1/jobs", {"prompt": "busy"}).status == 503


def test_a_failure_is_the_servers(client):
    answer = client.post(GENERATIONS, {"prompt": "fails"})
    assert (answer.status, answer.error["type"]) == (500, "server_error")


def test_an_unknown_field_is_named(client):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "qualitty": "hd"})
    assert (answer.status, answer.error["param"]) == (400, "qualitty")


def test_only_json_is_read(client):
    answer = client.post(GENERATIONS, {"prompt": "a fox"}, Content_Type="text/plain")
    assert answer.status == 415
    assert client.post(GENERATIONS, b"{").error["type"] == "invalid_request_error"


def test_a_body_that_is_too_long_is_refused(client):
    assert client.post(GENERATIONS, {"prompt": "a" * 2000}).status == 413


@pytest.mark.parametrize("path", ["/v1/other", "/docs", "/../etc/passwd"])
def test_an_unknown_path_is_not_found(client, path):
    assert client.get(path).status == 404
    assert client.get(path).error["message"]


def test_a_wrong_method_is_refused(client):
    answer = client.get(GENERATIONS)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert client.send("PUT", "/v1/jobs/name").headers["allow"] == "DELETE, GET"


def test_the_routes_are_listed_and_described(client):
    listed = {line.split()[1] for line in client.get("/").body["routes"]}
    described = client.get("/openapi.json").body["paths"]
    assert listed == {*described, "/openapi.json"}
    content = described[GENERATIONS]["post"]["requestBody"]["content"]
    assert "prompt" in content["application/json"]["schema"]["properties"]


def test_the_description_says_what_is_answered(client):
    described = client.get("/openapi.json").body
    assert described["info"]["version"] == tacache.__version__
    answers = {path: next(iter(kinds.values())) for path, kinds in described["paths"].items()}
    assert all({"4XX", "5XX"} <= set(one["responses"]) for one in answers.values())
    assert not any("422" in one["responses"] for one in answers.values())
    started = client.post("/v1/jobs", {"prompt": "a fox"})
    assert str(started.status) in answers["/v1/jobs"]["responses"]
    path = started.headers["location"]
    for name, route in (
        ("/events", "/v1/jobs/{name}/events"),
        ("/result", "/v1/jobs/{name}/result"),
    ):
        sent = client.get(path + name).headers["content-type"].partition(";")[0]
        assert sent in answers[route]["responses"]["200"]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"quality": "high", "output_format": "png", "background": "auto", "style": "vivid"},
        {"moderation": "low", "user": "someone", "response_format": None},
        {"n": None, "seed": None, "size": None},
        {"output_compression": 100, "stream": False, "partial_images": 0},
    ],
)
def test_what_openai_clients_send_besides_is_no_error(client, fields):
    answer = client.post(GENERATIONS, {"prompt": "a fox", **fields})
    assert (answer.status, len(answer.body["data"])) == (200, 1)


def test_seeds_that_count_on_are_all_seeds(client):
    last = 2**63 - 1
    assert client.post(GENERATIONS, {"prompt": "a fox", "seed": last}).status == 200
    answer = client.post(GENERATIONS, {"prompt": "a fox", "seed": last, "n": 2})
    assert (answer.status, answer.error["param"]) == (400, "seed")


def test_names_in_headers_have_no_case(client):
    named = {"Content_Type": "Application/JSON; charset=utf-8", "Host": "LocalHost"}
    assert client.post(GENERATIONS, {"prompt": "a fox"}, **named).status == 200


def test_the_model_is_listed(client):
    assert client.get("/v1/models").body["data"][0]["id"] == "tiny"


def test_numbers_for_prometheus(client):
    text = client.get("/metrics").raw.decode()
    assert 'tacache_batches_total{replica="local"} 3.0' in text
    assert 'tacache_evaluations_queued{replica="local"} 5.0' in text


def test_health_is_that_of_the_backend(client, backend):
    assert client.get("/healthz").body == {"status": "ok", "model": "tiny"}
    backend.ready = False
    assert client.get("/healthz").status == 503


def test_another_host_name_is_refused_where_no_key_is_asked_for(client):
    assert client.get("/v1/models", Host="evil.example").status == 403
    assert client.get("/v1/models", Host="localhost:1").status == 200
    assert client.get("/v1/models", Host="[::1]:80").status == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer other", "Basic first", "first"])
def test_without_a_key_nothing_is_answered(guarded, header):
    answer = guarded.get("/v1/models", Authorization=header)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.get("/metrics", Authorization=header).status == 401


@pytest.mark.parametrize("key", ["first", "second"])
def test_each_key_opens(guarded, key):
    assert guarded.get("/v1/models", Authorization=f"Bearer {key}").status == 200
    named = {"Host": "gpu.example", "Authorization": f"Bearer {key}"}
    assert guarded.get("/v1/models", **named).status == 200


def test_health_needs_no_key(guarded):
    assert guarded.get("/healthz").status == 200


def test_a_job_from_its_start_to_its_result(client):
    started = client.post("/v1/jobs", {"prompt": "a fox", "seed": 4})
    assert started.status == 202
    path = started.headers["location"]
    events = client.get(f"{path}/events").raw.decode()
    assert "event: done" in events
    found = client.get(path).body
    assert (found["status"], found["seed"]) == ("done", 4)
    assert found["evaluations"] == {"made": 2, "of": 2}
    result = client.get(found["result"])
    assert (result.raw, result.headers["content-type"]) == (PICTURE, "image/png")


def test_a_job_is_cancelled(client, backend):
    path = client.post("/v1/jobs", {"prompt": "never"}).headers["location"]
    assert client.get(path).body["status"] == "running"
    assert client.get(f"{path}/result").status == 409
    assert client.send("DELETE", path).body["status"] == "cancelled"
    assert backend.ended == ["never"]
    assert client.send("DELETE", path).body["status"] == "cancelled"  # once more
    last = client.get(f"{path}/events").raw.decode().split("data: ")[-1]
    assert json.loads(last)["status"] == "cancelled"


def test_a_job_that_fails_says_why(client):
    path = client.post("/v1/jobs", {"prompt": "fails"}).headers["location"]
    until(lambda: client.get(path).body["status"] == "failed")
    assert client.get(path).body["error"]["message"] == "the model failed"
    assert client.get(f"{path}/result").status == 500


def test_an_unknown_job_is_not_found(client):
    assert client.get("/v1/jobs/none").status == 404


def test_old_jobs_make_room_and_running_ones_do_not(client):
    paths = [client.post("/v1/jobs", {"prompt": "a fox"}).headers["location"] for _ in range(4)]
    assert [client.get(path).status for path in paths] == [404, 404, 200, 200]
    running = [client.post("/v1/jobs", {"prompt": "never"}).headers["location"] for _ in range(2)]
    assert client.post("/v1/jobs", {"prompt": "a fox"}).status == 503
    for path in running:
        client.send("DELETE", path)
    assert client.post("/v1/jobs", {"prompt": "a fox"}).status == 202


def test_a_model_that_makes_clips_has_jobs_only(backend):
    with served(make_app(backend, "wan", makes_clips=True)) as client:
        answer = client.post(GENERATIONS, {"prompt": "a fox"})
        assert (answer.status, "/v1/jobs" in answer.error["message"]) == (404, True)
