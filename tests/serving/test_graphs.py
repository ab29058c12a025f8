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

    def captured(self, function, arguments):
        made.captured.append(len(arguments["x"]))
        inputs = {name: one.clone() for name, one in arguments.items()}
        output = function(**inputs)
        return Graph(FakeGraph(made.replayed or function, inputs, output), inputs, output)

    monkeypatch.setattr(Graphs, "_captured", captured)
    return made


def test_a_call_that_waits_for_launches_is_captured_and_then_replayed(card):
    for number in range(7):
        x = torch.full((3, 2), float(number))
        assert torch.equal(card.graphs.call(card.double, {"x": x}, "kind", 3), 2 * x)
    assert card.captured == [3]
    assert len(card.graphs) == 1


def test_rows_that_are_rare_are_never_captured(card):
    card.calls(3, graphs.EARLY + 1)
    card.calls(2, graphs.RARE)
    card.calls(4, graphs.EARLY)  # of more rows nothing is known yet
    assert card.captured == [3]
    card.calls(2, 1)
    card.calls(4, 1)
    assert card.captured == [3, 2, 4]
    assert card.generator.state == "its own"


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
    def fails(self, function, arguments):
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
    monkeypatch.setattr(graphs, "MOST", 2)
    for rows in (9, 1, 2, 3):
        card.calls(rows, graphs.EARLY + 1)
    assert card.captured == [9, 1]


def test_graphs_can_be_given_up(card):
    assert not card.graphs.clear()
    card.calls(3, 7)
    assert card.graphs.clear()
    card.calls(3, 7)
    assert card.captured == [3]  # not again


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
            x = torch.randn(4, 16, device="cuda")
            (found,) = made.call(forward, {"x": x}, "kind", 4)
            assert torch.allclose(found, network(x), atol=1e-6)
    # as it is, then as it is with a warm-up and the capture; then replays
    assert len(calls) == graphs.EARLY + 3, calls


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

    for _ in range(graphs.EARLY + 3):
        x = torch.rand(4, device="cuda")
        assert torch.equal(made.call(forward, {"x": x}, "kind", 4), 2 * x)
    assert torch.cuda.current_stream() == before
    assert not made.is_on
