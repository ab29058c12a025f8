"""Calls are replayed where launching them takes the time, and are made as they are elsewhere."""

import time

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


@pytest.fixture
def cards(monkeypatch):
    """Graphs as on a GPU: capture is imitated, and what `device_s` says is the device's time."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(cards.device_s))
    monkeypatch.setattr(graphs, "on_cuda", lambda arguments: True)

    def captured(self, function, arguments):
        cards.captured.append(len(arguments["x"]))
        inputs = {name: one.clone() for name, one in arguments.items()}
        output = function(**inputs)
        return Graph(FakeGraph(cards.replayed or function, inputs, output), inputs, output)

    monkeypatch.setattr(Graphs, "_captured", captured)

    class cards:  # noqa: N801 - a handle for tests
        device_s, captured, replayed = 0.0, [], None

    made = Graphs()
    made.is_on = True
    cards.graphs = made
    return cards


def double(x):
    time.sleep(0.002)  # launching
    return 2 * x


def test_a_call_that_waits_for_launches_is_captured_and_then_replayed(cards):
    for number in range(7):
        x = torch.full((3, 2), float(number))
        assert torch.equal(cards.graphs.call(double, {"x": x}, "kind", 3), 2 * x)
    assert cards.captured == [3]


def made(cards, rows, times):
    for _ in range(times):
        cards.graphs.call(double, {"x": torch.ones(rows, 1)}, "kind", rows)


def test_rows_that_are_rare_are_never_captured(cards):
    made(cards, 3, graphs.EARLY + 1)
    made(cards, 2, graphs.EARLY)
    made(cards, 4, graphs.EARLY)
    assert cards.captured == [3]
    made(cards, 2, 1)
    made(cards, 4, 1)
    assert cards.captured == [3, 2, 4]


def test_where_the_device_takes_the_time_nothing_is_captured(cards):
    cards.device_s = 0.02
    made(cards, 1, 7)
    assert cards.captured == []


def test_results_are_tensors_of_their_own(cards):
    found = [cards.graphs.call(double, {"x": torch.full((1, 1), i)}, "k", 1) for i in range(7)]
    assert [float(one) for one in found] == [2.0 * i for i in range(7)]


def test_a_graph_that_differs_is_not_used(cards, caplog):
    cards.replayed = lambda x: 3 * x
    for _ in range(7):
        assert float(cards.graphs.call(double, {"x": torch.ones(1, 1)}, "kind", 1)) == 2.0
    assert caplog.text.count("differs from it") == 1


def test_what_cannot_be_captured_is_called_as_it_is(cards, monkeypatch, caplog):
    def fails(self, function, arguments):
        raise RuntimeError("a host synchronisation")

    monkeypatch.setattr(Graphs, "_captured", fails)
    with caplog.at_level("INFO"):
        for _ in range(7):
            assert float(cards.graphs.call(double, {"x": torch.ones(1, 1)}, "kind", 1)) == 2.0
    assert caplog.text.count("a host synchronisation") == 1


def test_no_more_graphs_are_kept_than_memory_is_meant_for(cards, monkeypatch):
    monkeypatch.setattr(graphs, "MOST", 2)
    for rows in (9, 1, 2, 3):
        made(cards, rows, graphs.EARLY + 1)
    assert cards.captured == [9, 1]


def test_off_a_gpu_a_call_is_a_call():
    found = Graphs().call(double, {"x": torch.ones(1, 1)}, "kind", 1)
    assert float(found) == 2.0


def test_tensors_inside_other_arguments_are_not_captured():
    assert not graphs.on_cuda({"kwargs": {"image": torch.ones(1)}})
    assert not graphs.on_cuda({"x": torch.ones(1)})


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
