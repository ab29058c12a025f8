"""The server on Ray: two replicas, one of which dies in the middle of its work."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from tests.serving.support import CALL, GENERATIONS, drawn, on_ray, same_picture, until

from tacache.errors import HostError
from tacache.instant import instant_plan
from tacache.serving.model_source import ModelSource
from tacache.serving.probe import signature_of
from tacache.serving.scaling import QUEUED, ByEvaluations

pytestmark = pytest.mark.slow

BUDGETS = (10, 20, 30)
MANY = {**CALL, "num_inference_steps": 40}  # steps: long enough to be killed in


@pytest.fixture(scope="module")
def client(pipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    with on_ray(pipe, folder, MANY, max_rows=4, replicas="2") as client:
        yield client


def kill_one() -> None:
    """End the process of a replica, as a full machine or a broken GPU would."""
    import ray
    from ray.util import list_named_actors

    names = [one["name"] for one in list_named_actors(all_namespaces=True)]
    replicas = sorted(name for name in names if name.startswith("SERVE_REPLICA"))
    assert len(replicas) == 2
    ray.kill(ray.get_actor(replicas[0], namespace="serve"), no_restart=False)


def at_work(client) -> int:
    """How many replicas make something."""
    return sum(n > 0 for n in client.metrics("evaluations_queued").values())


def test_requests_of_a_replica_that_dies_are_made_again(client, pipe):
    """Nothing is lost or answered twice, and every client gets its own picture."""
    assert client.get("/healthz").status == 200
    bodies = [
        {"prompt": f"a fox number {i}", "seed": i, "evaluations": BUDGETS[i % 3]} for i in range(12)
    ]
    with ThreadPoolExecutor(12) as threads:
        answers = [threads.submit(client.post, GENERATIONS, body) for body in bodies]
        until(lambda: at_work(client) == 2)
        kill_one()
        found = [one.result(300) for one in answers]
    assert [one.status for one in found] == [200] * len(bodies)
    times = signature_of(pipe, MANY).times
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
    until(lambda: client.metric("requests_cancelled") == 1)
    assert client.metric("evaluations_queued") == client.metric("requests_running") == 0


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


def told(*results: object, error: Exception | None = None) -> dict:
    """What is known of replicas that answer so when they are asked for their numbers."""
    from tacache.serving.replicas import RayBackend

    async def results_async(**options: object) -> list:
        if error is not None:
            raise error
        return list(results)

    asked = SimpleNamespace(results_async=results_async)
    handle = SimpleNamespace(broadcast=lambda name: asked)
    handle.options = lambda **options: handle
    return dict(asyncio.run(RayBackend(handle).snapshots()))


def test_a_replica_that_does_not_tell_its_numbers_is_left_out():
    front = {"front": {"requests_retried": 0}}
    assert told(("one", {"rows": 2}), RuntimeError("dead")) == {"one": {"rows": 2}, **front}
    assert told(error=TimeoutError("it took too long")) == front
