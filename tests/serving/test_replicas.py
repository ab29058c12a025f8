"""The server on Ray: two replicas, one of which dies in the middle of its work."""

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from tacache.errors import HostError
from tacache.instant import instant_plan
from tacache.serving.app import make_app
from tacache.serving.loading import ModelSource
from tacache.serving.scaling import QUEUED, ByEvaluations
from tacache.serving.settings import setting_of
from tests.serving.support import CALL, GENERATIONS, drawn, same_picture, served, until
from tests.tiny import PIPELINES

BUDGETS = (10, 20, 30)
MANY = {**CALL, "num_inference_steps": 40}  # steps: long enough to be killed in


@pytest.fixture(scope="module")
def pipe():
    made = PIPELINES["flux"].build()
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(scope="module")
def backend(pipe, tmp_path_factory):
    from tacache.serving.replicas import RayBackend

    folder = tmp_path_factory.mktemp("model") / "tiny"
    pipe.save_pretrained(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    source = ModelSource(str(folder), call=MANY, max_rows=4)
    backend = RayBackend.start(source, replicas="2")
    yield backend
    backend.stop()


@pytest.fixture(scope="module")
def client(backend):
    app = make_app(backend, "tiny")
    backend.close = lambda: _nothing()  # the fixture above ends it
    with served(app) as client:
        yield client


async def _nothing():
    return None


def kill_one() -> None:
    """End the process of a replica, as a full machine or a broken GPU would."""
    import ray
    from ray.util import list_named_actors

    names = [one["name"] for one in list_named_actors(all_namespaces=True)]
    replicas = sorted(name for name in names if name.startswith("SERVE_REPLICA"))
    assert len(replicas) == 2
    ray.kill(ray.get_actor(replicas[0], namespace="serve"), no_restart=False)


def test_requests_of_a_replica_that_dies_are_made_again(client, backend, pipe):
    """Nothing is lost or answered twice, and every client gets its own picture."""
    assert client.get("/healthz").status == 200
    bodies = [
        {"prompt": f"a fox number {i}", "seed": i, "evaluations": BUDGETS[i % 3]} for i in range(12)
    ]
    with ThreadPoolExecutor(12) as threads:
        answers = [threads.submit(client.post, GENERATIONS, body) for body in bodies]
        until(lambda: len(backend._numbers) == 2)
        kill_one()
        found = [one.result(300) for one in answers]
    assert [one.status for one in found] == [200] * len(bodies)
    times = setting_of(pipe, MANY).times
    for body, answer in zip(bodies, found, strict=True):
        (picture,) = answer.pictures()
        plan = instant_plan(times, body["evaluations"])
        wanted = drawn(pipe, plan, body["prompt"], body["seed"], **MANY)
        assert same_picture(picture, wanted)
    assert client.metric("requests_retried") >= 1


def test_a_refusal_of_a_replica_is_the_clients_answer(client):
    answer = client.post(GENERATIONS, {"prompt": "a fox", "evaluations": 41})
    assert (answer.status, answer.error["param"]) == (400, "evaluations")


def test_a_cancelled_job_frees_the_rows_of_its_replica(client):
    path = client.post("/v1/jobs", {"prompt": "a fox", "speedup": 1.0}).headers["location"]
    assert client.send("DELETE", path).body["status"] == "cancelled"
    until(lambda: _cancelled(client) >= 1)


def _cancelled(client) -> float:
    """Replicas tell their numbers with their answers."""
    client.post(GENERATIONS, {"prompt": "a fox", "evaluations": 2})
    return client.metric("requests_cancelled")


def context(*queued: float) -> SimpleNamespace:
    reported = {QUEUED: dict(enumerate(queued))} if queued else {}
    return SimpleNamespace(aggregated_metrics=reported)


def test_replicas_are_wanted_by_the_evaluations_that_wait():
    policy = ByEvaluations(target=100)
    assert policy(context()) == (1, {})
    assert policy(context(0.0, 0.0))[0] == 1
    assert policy(context(100.0, 100.0))[0] == 2
    assert policy(context(250.0, 60.0))[0] == 4


@pytest.mark.parametrize(("text", "scale"), [("2", (2, 2)), ("1:8", (1, 8))])
def test_a_number_of_replicas_is_read(text, scale):
    from tacache.serving.replicas import Scale

    assert Scale.of(text) == scale


@pytest.mark.parametrize("text", ["0", "many", "3:2", "-1", ":4", ""])
def test_a_number_of_replicas_that_cannot_be_is_refused(text):
    from tacache.serving.replicas import Scale

    with pytest.raises(HostError, match="replicas"):
        Scale.of(text)


def test_a_range_of_replicas_scales_by_our_policy():
    from tacache.serving.replicas import Scale, deployment

    made = deployment(ModelSource("tiny-flux"), Scale(1, 4), 0.0)
    config = made._bound_deployment._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas) == (1, 4)
    assert config.policy.get_policy().__name__ == "ByEvaluations"
