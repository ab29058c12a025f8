"""Batches answer everybody, whatever fails; nothing waits for ever."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from tacache.errors import HostError
from tacache.serving import costs
from tacache.serving.engine import Engine
from tacache.serving.request import Cancelled


def request(**fields):
    plain = {"is_cancelled": False, "adapters": None, "size": None, "number": 0}
    return SimpleNamespace(**plain | {"answers": 0, "comes_back": False} | fields)


def negated(x):
    return -x


@pytest.fixture
def engines():
    made = []

    def make(running=2, max_rows=8, max_wait_s=5.0, switch=lambda adapters: None):
        waits = {"max_rows": max_rows, "max_wait_s": max_wait_s}
        made.append(Engine(running=lambda: running, switch=switch, **waits))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answers(engine, function, inputs, requests=None):
    """What everybody gets who asks at the same time; errors are values."""

    def ask(x, by):
        try:
            return engine.evaluate(by, function, x)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(ask, inputs, requests or [request() for _ in inputs]))


def test_two_who_wait_share_one_batch_and_get_their_own(engines):
    sizes = []

    def double(x):
        sizes.append(len(x))
        return 2 * x

    one = engines()
    found = answers(one, double, [torch.ones(1, 2), torch.full((1, 2), 5.0)])
    assert [float(x[0, 0]) for x in found] == [2.0, 10.0]
    assert sizes[0] == 2  # and once alone, to see that joining changes nothing
    assert (one.batches, one.rows) == (1, 2)


def test_a_full_batch_does_not_wait_for_others(engines):
    started = time.monotonic()
    found = answers(engines(running=3, max_rows=2, max_wait_s=30.0), negated, [torch.ones(2, 1)])
    assert float(found[0].sum()) == -2
    assert time.monotonic() - started < 10


def test_one_who_waits_too_long_goes_alone(engines):
    assert float(answers(engines(running=5, max_wait_s=0.05), negated, [torch.ones(1)])[0]) == -1


def centred(x):
    return x - x.mean(0)


def test_where_joining_changes_a_result_calls_of_this_kind_are_made_singly(engines, caplog):
    engine = engines()
    for _ in range(2):
        results = answers(engine, centred, [torch.ones(1, 2), torch.full((1, 2), 3.0)])
        assert [float(x.abs().max()) for x in results] == [0.0, 0.0]
    assert caplog.text.count("differ from single ones") == 1


def test_what_failed_when_joined_is_joined_again_later(engines, monkeypatch):
    monkeypatch.setattr(costs, "CALLS_UNTIL_RETRY", 4)
    sizes, is_broken = [], True

    def work(x):
        sizes.append(len(x))
        if len(x) > 1 and is_broken:
            raise RuntimeError("a bad moment")
        return x

    engine = engines()
    for _ in range(4):
        assert answers(engine, work, [torch.ones(1)] * 2) == [torch.ones(1)] * 2
        is_broken = False
    assert sizes == [
        2,
        1,
        1,
        1,
        1,
        1,
        1,
        2,
        1,
    ]  # and once alone, to see that joining changes nothing


def test_an_error_of_one_stays_its_own_and_its_kind_is_still_joined(engines):
    sizes = []

    def positive(x):
        sizes.append(len(x))
        if (x < 0).any():
            raise ValueError("a negative number")
        return x

    engine = engines()
    good, bad = answers(engine, positive, [torch.ones(1, 2), -torch.ones(1, 2)])
    assert torch.equal(good, torch.ones(1, 2))
    assert isinstance(bad, ValueError)
    answers(engine, positive, [torch.ones(1, 2), torch.ones(1, 2)])
    assert sizes[:4] == [2, 1, 1, 2]


def test_a_model_that_ends_the_process_is_an_error_of_its_request(engines):
    def ends(x):
        if (x < 0).any():
            raise SystemExit(3)
        return x

    engine = engines()
    good, bad = answers(engine, ends, [torch.ones(1, 2), -torch.ones(1, 2)])
    assert torch.equal(good, torch.ones(1, 2))
    assert isinstance(bad, HostError)
    assert engine.is_alive


def test_where_memory_ends_batches_of_that_size_are_halved_for_a_while(engines):
    def small(x):
        if len(x) > 2:
            raise torch.OutOfMemoryError("no memory")
        return x + 1

    engine = engines(running=4)
    who = [request(size="large") for _ in range(4)]
    results = answers(engine, small, [torch.full((1, 1), float(i)) for i in range(4)], who)
    assert [float(x) for x in results] == [1.0, 2.0, 3.0, 4.0]
    rows = engine.costs.limits.rows
    assert (rows("large", 8), rows("small", 8), engine.max_rows) == (2, 8, 8)


def test_memory_that_is_too_small_for_one_is_an_error(engines):
    def never(x):
        raise torch.OutOfMemoryError("no memory")

    found = answers(engines(running=1), never, [torch.ones(1)])[0]
    assert isinstance(found, torch.OutOfMemoryError)


def test_other_adapters_share_no_batch(engines):
    switched, sizes = [], []

    def count(x):
        sizes.append(len(x))
        return x

    who = [request(adapters=(("a", 1.0),)), request(adapters=(("b", 1.0),))]
    answers(
        engines(max_wait_s=0.05, switch=switched.append),
        count,
        [torch.ones(1, 2), torch.ones(1, 2)],
        who,
    )
    assert sizes == [1, 1]
    assert sorted(switched) == [(("a", 1.0),), (("b", 1.0),)]


def test_a_cancelled_request_is_let_go_at_once(engines):
    one, by = engines(running=2, max_wait_s=60.0), request()

    def cancel():
        by.is_cancelled = True
        one.notice()

    timer = threading.Timer(0.1, cancel)
    timer.start()
    assert isinstance(answers(one, negated, [torch.ones(1)], [by])[0], Cancelled)
    assert isinstance(answers(one, negated, [torch.ones(1)], [by])[0], Cancelled)


def test_closing_tells_those_who_wait(engines):
    one = engines(running=2, max_wait_s=60.0)
    timer = threading.Timer(0.1, one.close)
    timer.start()
    assert isinstance(answers(one, negated, [torch.ones(1)])[0], Cancelled)
    assert isinstance(answers(one, negated, [torch.ones(1)])[0], Cancelled)


def test_who_came_first_goes_first_and_what_ends_a_request_before_all(engines):
    seen = []

    def look(x):
        seen.append(x.flatten().tolist())
        return x

    one = engines(running=9, max_rows=2, max_wait_s=0.2)
    with ThreadPoolExecutor(9) as pool:
        blocked, free = threading.Event(), threading.Event()

        def hold(x):
            blocked.set()
            free.wait(30)
            return x

        first = pool.submit(one.call_alone, request(number=0), hold, x=torch.ones(1))
        blocked.wait(30)
        asks = [
            pool.submit(one.evaluate, request(number=n), look, torch.full((1, 1), float(n)))
            for n in (3, 1, 2)
        ]
        asks.append(pool.submit(one.decode, request(number=9), look, torch.full((1, 2), 9.0)))
        while len(one._waiting) < 4:
            time.sleep(0.01)
        free.set()
        for ask in (first, *asks):
            ask.result(30)
    assert seen[0] == [9.0, 9.0]
    assert seen[1] == [1.0, 2.0]
    assert seen[-1] == [3.0]


def test_where_rows_do_not_pay_batches_have_fewer(engines):
    sizes = []

    def work(x):
        sizes.append(len(x))
        time.sleep(0.02 * len(x))
        return x

    one = engines(running=4, max_rows=4)
    for rows, count in ((1, 3), (2, 3), (3, 3)):
        for _ in range(count):
            one.costs.add_batch(None, rows, 0.02 * rows)
    answers(one, work, [torch.full((1, 1), float(i)) for i in range(4)])
    assert sizes == [1, 1, 1, 1]


@pytest.mark.slow
def test_a_full_batch_waits_a_little_for_one_that_came_before(engines):
    order = []

    def work(x):
        order.append(int(x[0, 0]))
        time.sleep(0.05)
        return x

    one = engines(running=3, max_rows=1, max_wait_s=5.0)
    for rows in (1, 2):
        for _ in range(3):
            one.costs.add_batch(None, rows, 10.0 * rows)  # five per cent of it is half a second
    first, second = request(number=0, comes_back=True), request(number=1, comes_back=True)

    def run(by, pause):
        for _ in range(2):
            one.evaluate(by, work, torch.full((1, 1), float(by.number)))
            time.sleep(pause)  # longer than the moment that everybody is given
        by.comes_back = False

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, first, 0.05)]
        time.sleep(0.02)
        futures.append(pool.submit(run, second, 0.05))
        for future in futures:
            future.result(60)
    assert order == [0, 0, 1, 1]


def test_graphs_are_given_up_before_batches_are_halved(engines, monkeypatch):
    one = engines(running=2)

    class Full:
        is_held = True

        def call(self, function, arguments, kind, rows):
            """Make the call where graphs hold no memory."""
            if self.is_held:
                raise torch.OutOfMemoryError("no memory")
            return function(**arguments)

        def clear(self):
            """Give the memory back."""
            held, self.is_held = self.is_held, False
            return held

    monkeypatch.setattr(one, "_graphs", Full())
    found = answers(one, negated, [torch.ones(1, 1), torch.ones(1, 1)])
    assert [float(x) for x in found] == [-1.0, -1.0]
    assert one.max_rows == 8
