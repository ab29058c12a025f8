"""Tries of a tuning in a file: made once, also after a kill."""

import math

import pytest
from tests.support import mixture, noise_of

from tacache import time_grid
from tacache_lab.bench.records import RecordError
from tacache_lab.bench.tuning_journal import Prepared, TuningJournal
from tacache_lab.methods import BASELINES
from tacache_lab.methods.budcache import BudCache
from tacache_lab.methods.seam import RecordedProblem, record


class Clock:
    """Evaluations that were counted, as a benchmark counts them."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """As of now."""
        return self.now


def made(clock, *numbers):
    def make():
        clock.now += 5
        return numbers

    return make


def never():
    raise AssertionError("it is known")


def test_a_try_is_made_once(tmp_path):
    clock = Clock()
    tries = TuningJournal(tmp_path / "x.tries", clock)
    assert tries("a", made(clock, 0.1, 2)) == (0.1, 2)
    assert tries("a", never) == (0.1, 2)
    assert tries.evaluations == 0


def test_what_was_found_before_is_known(tmp_path):
    clock, path = Clock(), tmp_path / "work" / "x.tries"
    tries = TuningJournal(path, clock)
    for name, number in (("a", 1 / 3), ("b", math.inf)):
        tries(name, made(clock, number))
    again = TuningJournal(path, clock)
    assert (again("a", never), again("b", never)) == ((1 / 3,), (math.inf,))
    assert again.evaluations == 10
    again("c", made(clock, 1.0))
    assert TuningJournal(path).evaluations == 15
    prepared = Prepared(status="done", kind="X", settings={"a": 1}, seconds=2.0, evaluations=15)
    again.finish(prepared)
    assert TuningJournal(path).prepared == prepared
    again.retry()
    last = TuningJournal(path)
    assert (last.prepared, last("a", never)) == (None, (1 / 3,))


def test_a_line_that_a_kill_has_torn_is_made_again(tmp_path):
    clock, path = Clock(), tmp_path / "x.tries"
    tries = TuningJournal(path, clock)
    tries("a", made(clock, 1.0))
    tries("b", made(clock, 2.0))
    path.write_text(path.read_text()[:-7])
    again = TuningJournal(path, clock)
    assert again("a", never) == (1.0,)
    assert again("b", made(clock, 3.0)) == (3.0,)
    last = TuningJournal(path)
    assert (last("a", never), last("b", never)) == ((1.0,), (3.0,))


@pytest.mark.parametrize(
    "damage",
    [
        '{"job": "x", "try": "a", "numbers": 2, "evaluations": 5}',
        '{"job": "x", "try": "a", "numbers": [2], "evaluations": "many"}',
        '{"try": "a", "numbers": [2], "evaluations": 5}',
    ],
    ids=["a number", "a word", "an earlier version"],
)
def test_a_damaged_line_is_named(damage, tmp_path):
    path = tmp_path / "x.tries"
    path.write_text(f"{damage}\n")
    with pytest.raises(RecordError, match=r"x\.tries.* earlier version wrote it: delete"):
        TuningJournal(path)


def test_without_a_file_nothing_is_kept():
    tries = TuningJournal()
    assert tries("a", lambda: (1.0,)) == (1.0,)
    assert tries.prepared is None


class KilledError(Exception):
    """An end before the work is done."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "baseline",
    [
        BudCache(tries=20),
        *(BASELINES[n] for n in ("magcache", "teacache", "taylorseer-2", "easycache")),
    ],
    ids=lambda one: one.name,
)
def test_a_tuning_that_is_killed_goes_on_and_finds_the_same(baseline, tmp_path):
    """With enough evaluations between two kills for one try, it comes to its end."""
    flow, clock = mixture(), Clock()
    times = tuple(time_grid(14, 2.0))
    plain = record(flow, noise_of(3), times)
    whole = baseline.fit(plain, 6)

    def dying(x, t):
        if clock.now == limit:
            raise KilledError
        clock.now += 1
        return flow(x, t)

    limit, kills = 0, 0
    while True:
        limit = clock.now + 20
        tries = TuningJournal(tmp_path / "x.tries", clock)
        recording = RecordedProblem(
            dying, plain.noise, times, {}, None, plain.states, plain.velocities, tries
        )
        try:
            found = baseline.fit(recording, 6)
            break
        except KilledError:
            kills += 1
            assert kills < 500
    assert found == whole
    assert kills >= 2
    assert 0 < tries.evaluations < clock.now  # what ran in vain is not of a try
