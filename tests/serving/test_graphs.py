"""Calls are replayed where launching them takes the time, and are made as they are elsewhere."""

from contextlib import nullcontext

import pytest
import torch

from tacache.serving import graphs
from tacache.serving.graphs import Graph, Graphs


class FakeGraph:
    """Does what a captured graph does on replay, on the CPU."""

    def __init__(self, function, inputs, output):
        self.run = lambda: output.copy_(function(**inputs))

    def replay(self):
        """Fill the output anew."""
        self.run()


class Generator:
    """Random numbers of the device: which of its states it has."""

    state = "its own"

    def clone_state(self):
        """A copy to go back to."""
        return "the copy"

    def graphsafe_set_state(self, state):
        """Go back."""
        self.state = state


class Card:
    """A device that does not exist: a clock, what a wait for it takes, and what was captured."""

    def __init__(self):
        self.now, self.device_s = 0.0, 0.0
        self.captured, self.replayed, self.generator = [], None, Generator()
        self.graphs = Graphs()
        self.graphs.is_on = True

    def synchronize(self, device=None):
        """Wait for what was launched."""
        self.now += self.device_s

    def double(self, x):
        """A call whose launches take a while."""
        self.now += 0.002
        return 2 * x

    def calls(self, rows, times):
        """Make some calls of as many rows."""
        for _ in range(times):
            self.graphs.call(self.double, {"x": torch.ones(rows, 1)}, "kind", rows)


@pytest.fixture
def card(monkeypatch):
    """Graphs as on a GPU, whose capture is imitated."""
    made = Card()
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the stream")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: made.captured.append(stream))
    monkeypatch.setattr(graphs, "default_generator", lambda: made.generator)
    monkeypatch.setattr(graphs, "device_of", lambda arguments: "cuda")
    monkeypatch.setattr(graphs, "is_plain", lambda function: True)
    monkeypatch.setattr(graphs.time, "perf_counter", lambda: made.now)

    def captured(self, function, arguments, rows, graph_rows):
        made.captured.append(graph_rows)
        inputs = {name: graphs.with_rows(one, graph_rows) for name, one in arguments.items()}
        output = function(**inputs)
        fake = FakeGraph(made.replayed or function, inputs, output)
        return Graph(fake, inputs, output, graph_rows)

    monkeypatch.setattr(Graphs, "_captured", captured)
    return made


def test_a_call_that_waits_for_launches_is_captured_and_then_replayed(card):
    for number in range(7):
        x = torch.full((3, 2), float(number))
        assert torch.equal(card.graphs.call(card.double, {"x": x}, "kind", 3), 2 * x)
    assert card.captured == [3]
    assert len(card.graphs) == 1


@pytest.mark.parametrize("rows", range(1, 33))
def test_a_call_is_made_by_the_next_of_few_graphs(rows):
    graph_rows = graphs.padded(rows)
    assert graph_rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    assert rows <= graph_rows < 1.5 * rows


def test_calls_with_other_rows_share_a_graph_and_get_their_own(card):
    card.calls(12, graphs.CALLS_BEFORE_TIMING)
    assert card.captured == []
    for rows in (9, 12, 10, 11, 5, 6, 9):
        x = torch.arange(float(rows))[:, None]
        assert torch.equal(card.graphs.call(card.double, {"x": x}, "kind", rows), 2 * x)
    assert card.captured == [12, 6]
    card.calls(14, graphs.CALLS_BEFORE_TIMING - 1)  # of more rows nothing is known yet
    assert card.captured == [12, 6]
    assert card.generator.state == "its own"


def test_a_call_that_is_captured_or_timed_is_no_measure_of_others(card):
    slow = []
    for _ in range(6):
        card.calls(2, 1)
        slow.append(card.graphs.was_slow)
    assert slow == [False, False, True, True, False, False]


def test_where_the_device_takes_the_time_nothing_is_captured(card):
    card.device_s = 0.02
    card.calls(1, 7)
    assert card.captured == []


def test_results_are_tensors_of_their_own(card):
    found = [
        card.graphs.call(card.double, {"x": torch.full((1, 1), float(i))}, "k", 1) for i in range(7)
    ]
    assert [float(one) for one in found] == [2.0 * i for i in range(7)]


def always_two(card, times=7):
    for _ in range(times):
        assert float(card.graphs.call(card.double, {"x": torch.ones(1, 1)}, "kind", 1)) == 2.0


def test_a_graph_that_differs_is_not_used(card, caplog):
    card.replayed = lambda x: 3 * x
    always_two(card)
    assert caplog.text.count("differs from it") == 1


def test_an_empty_graph_is_not_used_though_its_capture_left_the_right_result(card, monkeypatch):
    monkeypatch.setattr(FakeGraph, "replay", lambda self: None)
    for number in range(7):
        x = torch.full((1, 1), float(number))
        assert float(card.graphs.call(card.double, {"x": x}, "kind", 1)) == 2.0 * number
    assert len(card.graphs) == 0


def test_after_a_capture_that_fails_calls_are_made_as_they_are(card, monkeypatch, caplog):
    def fails(self, function, arguments, rows, graph_rows):
        raise RuntimeError("a host synchronisation")

    monkeypatch.setattr(Graphs, "_captured", fails)
    always_two(card)
    assert caplog.text.count("a host synchronisation") == 1
    assert not card.graphs.is_on
    assert (card.captured, card.generator.state) == (["the stream"], "the copy")  # are put back


@pytest.mark.parametrize(
    "ask", [lambda x: float(x.sum()), lambda x: torch.rand(1), lambda x: x.nonzero()]
)
def test_what_waits_for_the_device_or_draws_numbers_is_not_captured(card, ask):
    def unsuited(x):
        ask(x)
        return card.double(x)

    for _ in range(7):
        found = card.graphs.call(unsuited, {"x": torch.ones(1, 1)}, "kind", 1)
        assert float(found) == 2.0
    assert card.captured == []


def test_no_more_graphs_are_kept_than_memory_is_meant_for(card, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    for rows in (8, 1, 2, 3):
        card.calls(rows, graphs.CALLS_BEFORE_TIMING + 1)
    assert card.captured == [8, 1]


def test_graphs_are_given_up_for_a_while(card, monkeypatch):
    monkeypatch.setattr(graphs, "CALLS_WITHOUT_GRAPHS", 5)
    assert not card.graphs.clear()
    card.calls(3, 7)
    assert card.graphs.clear()
    card.calls(3, 4)
    assert card.captured == [3]
    card.calls(3, 2)
    assert card.captured == [3, 3]


def test_a_capture_for_which_memory_ends_is_tried_again(card, monkeypatch):
    monkeypatch.setattr(graphs, "CALLS_WITHOUT_GRAPHS", 3)
    captured, fails = Graphs._captured, [True]

    def sometimes(self, *args):
        if fails and fails.pop():
            raise torch.OutOfMemoryError("no memory")
        return captured(self, *args)

    monkeypatch.setattr(Graphs, "_captured", sometimes)
    always_two(card, 9)
    assert (card.graphs.is_on, len(card.graphs)) == (True, 1)


def test_off_a_gpu_a_call_is_a_call():
    found = Graphs().call(lambda x: 2 * x, {"x": torch.ones(1, 1)}, "kind", 1)
    assert float(found) == 2.0


def test_tensors_inside_other_arguments_are_not_captured():
    assert graphs.device_of({"kwargs": {"image": torch.ones(1)}}) is None
    assert graphs.device_of({"x": torch.ones(1)}) is None
    assert graphs.device_of({"steps": 3}) is None


def test_networks_that_are_compiled_or_have_adapters_are_not_captured():
    network = torch.nn.Linear(1, 1)
    assert graphs.is_plain(network.forward)
    network.peft_config = {"style": None}
    assert not graphs.is_plain(network.forward)
    del network.peft_config
    network._compiled_call_impl = network.forward
    assert not graphs.is_plain(network.forward)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_network_on_a_gpu_is_replayed_with_the_same_result():
    layers = [torch.nn.Linear(16, 16) for _ in range(60)]
    network = torch.nn.Sequential(*layers).cuda().eval()
    made, calls = Graphs(), []

    def forward(x):
        calls.append(len(x))
        return (network(x),)

    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(3, 16, device="cuda")
            (found,) = made.call(forward, {"x": x}, "kind", 3)
            assert torch.allclose(found, network(x), atol=1e-6)
    # as it is, then as it is with a warm-up and the capture; then replays
    assert calls == [3] * (graphs.CALLS_BEFORE_TIMING + 3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_calls_with_other_rows_share_a_graph():
    network = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(60)]).cuda().eval()
    made = Graphs()
    made._bound["kind"] = 12
    with torch.no_grad():
        for rows in (9, 12, 10, 11, 9):
            x = torch.randn(rows, 16, device="cuda")
            assert torch.allclose(
                made.call(lambda x: network(x), {"x": x}, "kind", rows), network(x), atol=1e-5
            )
    assert len(made) == 1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_after_a_capture_that_fails_a_gpu_goes_on(monkeypatch):
    """The watch for unsuited operations is put out, so that the capture meets one."""
    monkeypatch.setattr(graphs, "UNSUITED", ("nothing",))
    monkeypatch.setattr(graphs, "_crosses", lambda args, result: False)
    made, before = Graphs(), torch.cuda.current_stream()
    made._bound["kind"] = 9

    def forward(x):
        return 2 * x if float(x.sum()) > -1e9 else x

    for _ in range(graphs.CALLS_BEFORE_TIMING + 3):
        x = torch.rand(4, device="cuda")
        assert torch.equal(made.call(forward, {"x": x}, "kind", 4), 2 * x)
    assert torch.cuda.current_stream() == before
    assert not made.is_on
