"""Two nodes of Ray on one machine, of which one is killed in the middle and comes back."""

import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.state import list_actors
from tests.serving.support import (
    CALL,
    GENERATIONS,
    Client,
    drawn,
    on_ray,
    same_picture,
    tiny_flux,
    until,
)

from tacache.instant import instant_plan
from tacache.serving.probe import signature_of

pytestmark = pytest.mark.slow

MANY = {**CALL, "num_inference_steps": 40}  # steps: long enough to be killed in
BUDGETS = (9, 13, 20)
PATIENCE = 300  # seconds, on a busy machine


def min_of(numbers: Mapping[str, float], replicas: int) -> float:
    """Return the least number of any replica, or 0 where fewer of them tell theirs."""
    return min(numbers.values()) if len(numbers) >= replicas else 0


def running() -> int:
    """How many replicas Ray Serve takes for running."""
    deployments = serve.status().applications["tacache"].deployments.values()
    return sum(one.replica_states.get("RUNNING", 0) for one in deployments)


def lose_power(cluster: Cluster, pids: list[int]) -> None:
    """End the second node with all its processes at once, as when a machine goes dark.

    Ray ends a node's main process only; its replicas live on for a second, long enough to answer.
    """
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(cluster.second, allow_graceful=False)


@pytest.fixture
def cluster(monkeypatch):
    """A head, where one replica has room, and a second node for another."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": True})
    made.second = made.add_node(num_cpus=1)
    yield made
    serve.shutdown()
    ray.shutdown()
    made.shutdown()


def ask_until(client: Client, body: dict[str, Any], node_lost: threading.Event) -> list[Any]:
    """Ask for one picture again and again, so that the node that dies has something to do."""
    answers = [client.post(GENERATIONS, body)]
    while not node_lost.is_set():
        answers.append(client.post(GENERATIONS, body))
    return answers


def test_a_node_that_dies_loses_no_request_and_is_used_again(cluster, tmp_path):
    pipe, node_lost = tiny_flux(), threading.Event()
    times = signature_of(pipe, MANY).times
    bodies = [
        {"prompt": f"a fox number {i}", "seed": i, "evaluations": BUDGETS[i % 3]} for i in range(9)
    ]
    with on_ray(pipe, tmp_path / "model", MANY, max_rows=4, replicas="2",
                address=cluster.address) as client:  # fmt: skip
        on_second = [("node_id", "=", cluster.second.node_id), ("state", "=", "ALIVE")]
        pids = [actor.pid for actor in list_actors(filters=on_second, detail=True)]
        assert pids
        with ThreadPoolExecutor(len(bodies)) as threads:
            clients = [threads.submit(ask_until, client, body, node_lost) for body in bodies]
            try:
                until(lambda: min_of(client.metrics("requests_done"), replicas=2) > 0, PATIENCE)
                lose_power(cluster, pids)
            finally:
                node_lost.set()
            asked = [answers.result(PATIENCE) for answers in clients]
        for body, answers in zip(bodies, asked, strict=True):
            plan = instant_plan(times, body["evaluations"])
            expected = drawn(pipe, plan, body["prompt"], body["seed"], **MANY)
            for answer in answers:
                assert answer.status == 200, answer.raw
                (picture,) = answer.pictures()  # one, so that nothing is answered twice
                assert same_picture(picture, expected)
        assert client.metric("requests_retried") >= 1
        cluster.add_node(num_cpus=1)
        until(lambda: running() == 2, PATIENCE)
        until(lambda: len(client.metrics("requests_done")) >= 2, PATIENCE)
        with ThreadPoolExecutor(len(bodies)) as threads:
            again = list(threads.map(lambda body: client.post(GENERATIONS, body), bodies))
        assert [answer.status for answer in again] == [200] * len(bodies)
        until(lambda: min_of(client.metrics("requests_done"), replicas=2) > 0, PATIENCE)
