"""Waves answer everybody, whatever fails; nothing waits for ever."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from tacache.serving.asks import Cancelled
from tacache.serving.waves import Waves


def request(**fields):
    plain = {"is_cancelled": False, "adapters": None, "size": None, "number": 0}
    return SimpleNamespace(**plain | {"answers": 0, "comes_back": False} | fields)


def negated(x):
    return -x


@pytest.fixture
def waves():
    made = []

    def make(active=2, max_rows=8, max_wait_s=5.0, switch=lambda adapters: None):
        made.append(
            Waves(max_rows=max_rows, max_wait_s=max_wait_s, active=lambda: active, switch=switch)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def asked(waves, function, inputs, requests=None):
    """What everybody gets who asks at the same time; errors are values."""

    def ask(x, by):
        try:
            return waves.evaluate(by, function, x)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(ask, inputs, requests or [request() for _ in inputs]))


def test_two_who_wait_share_one_wave_and_get_their_own(waves):
    sizes = []

    def double(x):
        sizes.append(len(x))
        return 2 * x

    one = waves()
    found = asked(one, double, [torch.ones(1, 2), torch.full((1, 2), 5.0)])
    assert [float(x[0, 0]) for x in found] == [2.0, 10.0]
    assert sizes[0] == 2  # and once alone, to see that joining changes nothing
    assert (one.made, one.rows) == (1, 2)


def test_a_full_wave_does_not_wait_for_others(waves):
    started = time.monotonic()
    found = asked(waves(active=3, max_rows=2, max_wait_s=30.0), negated, [torch.ones(2, 1)])
    assert float(found[0].sum()) == -2
    assert time.monotonic() - started < 10


def test_one_who_waits_too_long_goes_alone(waves):
    assert float(asked(waves(active=5, max_wait_s=0.05), negated, [torch.ones(1)])[0]) == -1


def test_where_joining_changes_a_result_it_is_given_up(waves, caplog):
    def centred(x):
        return x - x.mean(0)

    one = waves()
    for _ in range(2):
        found = asked(one, centred, [torch.ones(1, 2), torch.full((1, 2), 3.0)])
        assert [float(x.abs().max()) for x in found] == [0.0, 0.0]
    assert caplog.text.count("differ from single ones") == 1


def test_an_error_of_one_stays_its_own(waves):
    def positive(x):
        if (x < 0).any():
            raise ValueError("a negative number")
        return x

    good, bad = asked(waves(), positive, [torch.ones(1, 2), -torch.ones(1, 2)])
    assert torch.equal(good, torch.ones(1, 2))
    assert isinstance(bad, ValueError)


def test_where_memory_ends_waves_are_halved_from_then_on(waves, caplog):
    def small(x):
        if len(x) > 2:
            raise torch.OutOfMemoryError("no memory")
        return x + 1

    one = waves(active=4)
    found = asked(one, small, [torch.full((1, 1), float(i)) for i in range(4)])
    assert [float(x) for x in found] == [1.0, 2.0, 3.0, 4.0]
    assert one.max_rows == 2
    assert "at most 2" in caplog.text


def test_memory_that_is_too_small_for_one_is_an_error(waves):
    def never(x):
        raise torch.OutOfMemoryError("no memory")

    found = asked(waves(active=1), never, [torch.ones(1)])[0]
    assert isinstance(found, torch.OutOfMemoryError)


def test_other_adapters_share_no_wave(waves):
    switched, sizes = [], []

    def count(x):
        sizes.append(len(x))
        return x

    who = [request(adapters=(("a", 1.0),)), request(adapters=(("b", 1.0),))]
    asked(
        waves(max_wait_s=0.05, switch=switched.append),
        count,
        [torch.ones(1, 2), torch.ones(1, 2)],
        who,
    )
    assert sizes == [1, 1]
    assert sorted(switched) == [(("a", 1.0),), (("b", 1.0),)]


def test_a_cancelled_request_is_let_go_at_once(waves):
    one, by = waves(active=2, max_wait_s=60.0), request()

    def cancel():
        by.is_cancelled = True
        one.notice()

    timer = threading.Timer(0.1, cancel)
    timer.start()
    assert isinstance(asked(one, negated, [torch.ones(1)], [by])[0], Cancelled)
    assert isinstance(asked(one, negated, [torch.ones(1)], [by])[0], Cancelled)


def test_closing_tells_those_who_wait(waves):
    one = waves(active=2, max_wait_s=60.0)
    timer = threading.Timer(0.1, one.close)
    timer.start()
    assert isinstance(asked(one, negated, [torch.ones(1)])[0], Cancelled)
    assert isinstance(asked(one, negated, [torch.ones(1)])[0], Cancelled)


def test_who_came_first_goes_first_and_what_ends_a_request_before_all(waves):
    seen = []

    def look(x):
        seen.append(x.flatten().tolist())
        return x

    one = waves(active=9, max_rows=2, max_wait_s=0.2)
    with ThreadPoolExecutor(9) as pool:
        blocked, free = threading.Event(), threading.Event()

        def hold(x):
            blocked.set()
            free.wait(30)
            return x

        first = pool.submit(one.ask_alone, request(number=0), hold, x=torch.ones(1))
        blocked.wait(30)
        asks = [
            pool.submit(one.evaluate, request(number=n), look, torch.full((1, 1), float(n)))
            for n in (3, 1, 2)
        ]
        asks.append(pool.submit(one.decode, request(number=9), look, torch.full((1, 2), 9.0)))
        while len(one._pending) < 4:
            time.sleep(0.01)
        free.set()
        for ask in (first, *asks):
            ask.result(30)
    assert seen[0] == [9.0, 9.0]
    assert seen[1] == [1.0, 2.0]
    assert seen[-1] == [3.0]


def test_where_rows_do_not_pay_waves_have_fewer(waves):
    sizes = []

    def work(x):
        sizes.append(len(x))
        time.sleep(0.02 * len(x))
        return x

    one = waves(active=4, max_rows=4)
    for rows, count in ((1, 3), (2, 3), (3, 3)):
        for _ in range(count):
            one.costs.add_wave(None, rows, 0.02 * rows)
    asked(one, work, [torch.full((1, 1), float(i)) for i in range(4)])
    assert sizes == [1, 1, 1, 1]


def test_a_full_wave_waits_a_little_for_one_that_came_before(waves):
    order = []

    def work(x):
        order.append(int(x[0, 0]))
        time.sleep(0.05)
        return x

    one = waves(active=3, max_rows=1, max_wait_s=5.0)
    for rows in (1, 2):
        for _ in range(3):
            one.costs.add_wave(None, rows, 10.0 * rows)  # five per cent of it is half a second
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


def test_graphs_are_given_up_before_waves_are_halved(waves, monkeypatch):
    one = waves(active=2)

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
    found = asked(one, negated, [torch.ones(1, 1), torch.ones(1, 1)])
    assert [float(x) for x in found] == [-1.0, -1.0]
    assert one.max_rows == 8
