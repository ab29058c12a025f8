"""Replicas on Ray that come when evaluations wait, and go when nothing does."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from tests.serving.support import CALL, GENERATIONS, drawn, on_ray, same_picture, until

from tacache.instant import instant_plan
from tacache.serving.probe import signature_of

pytestmark = pytest.mark.slow

STEPS = 40
LONG = {**CALL, "num_inference_steps": STEPS}
MAX_ROWS = 4
CLIENTS = 8
BODIES = [
    {"prompt": f"a fox number {i}", "seed": i, "evaluations": (10, 20, 30)[i % 3]} for i in range(6)
]
LARGE = {"prompt": "a pack of foxes", "seed": 50, "n": 8, "evaluations": STEPS}


@pytest.fixture(scope="module")
def client(pipe, tmp_path_factory):
    from tacache.serving.replicas import Pace

    pace = Pace(target=5.0, up_s=0.5, down_s=4.0, average_s=2.0, report_s=0.5)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    with on_ray(pipe, folder, LONG, max_rows=MAX_ROWS, replicas="1:2", pace=pace) as client:
        yield client


@pytest.fixture(scope="module")
def known(pipe):
    """Pictures by prompt, seed and budget, as direct calls make them."""
    times = signature_of(pipe, LONG).times
    keys = [(one["prompt"], one["seed"], one["evaluations"]) for one in BODIES]
    keys += [(LARGE["prompt"], LARGE["seed"] + i, STEPS) for i in range(LARGE["n"])]
    found = {}
    for prompt, seed, budget in keys:
        plan = None if budget == STEPS else instant_plan(times, budget)
        found[prompt, seed, budget] = drawn(pipe, plan, prompt, seed, **LONG)
    return found


def asked(client, body, known) -> None:
    """Ask for pictures, and compare each with that of a direct call."""
    answer = client.post(GENERATIONS, body)
    assert answer.status == 200, answer.raw
    for one, picture in zip(answer.body["data"], answer.pictures(), strict=True):
        wanted = known[body["prompt"], one["seed"], one["evaluations"]]
        assert same_picture(picture, wanted), one


def replicas() -> dict[str, int]:
    """How many replicas there are, by what Ray says of them."""
    from ray import serve

    (found,) = serve.status().applications["tacache"].deployments.values()
    return {str(getattr(state, "value", state)): n for state, n in found.replica_states.items()}


def answering(client) -> set[str]:
    """The replicas that are there and have answered requests."""
    return {name for name, done in client.metrics("requests_done").items() if done > 0}


def test_replicas_come_with_the_evaluations_that_wait_and_go_with_them(client, known):
    """Ray sees what replicas report: a single request at a time would never bring it to two."""
    assert replicas() == {"RUNNING": 1}
    asked(client, BODIES[0], known)
    first = answering(client)
    assert len(first) == 1

    def one_at_a_time() -> bool:
        asked(client, LARGE, known)  # 8 x 40 evaluations, where a replica is to have 5 x 4
        return replicas() == {"RUNNING": 2}

    until(one_at_a_time, 120)
    both = under_load(client, known)
    assert len(both) == 2
    assert first < both
    until(lambda: replicas() == {"RUNNING": 1}, 120)
    until(lambda: len(answering(client)) == 1)
    asked(client, BODIES[0], known)
    assert client.metric("requests_retried") == 0


def under_load(client, known) -> set[str]:
    """The replicas that answer many clients at once; each compares all that it is given."""
    enough = threading.Event()

    def ask(i: int) -> None:
        while not enough.is_set():
            asked(client, BODIES[i % len(BODIES)], known)

    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(ask, i) for i in range(CLIENTS)]
        try:
            until(lambda: len(answering(client)) == 2 or any(one.done() for one in asking))
        finally:
            enough.set()
        for one in asking:
            one.result(120)
    return answering(client)
