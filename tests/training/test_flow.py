"""The training state of tiny-flux: tensors and numbers alone, so that loading it runs no code."""

import ast
from pathlib import Path

import pytest
import torch
from training import flow

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_training_goes_on_from_its_state(tmp_path):
    state = flow.resume(tmp_path / "flow.pt", "cpu")
    for parameter in state["model"].parameters():
        parameter.grad = torch.ones_like(parameter)
    flow.update(state, torch.zeros((), requires_grad=True), 1e-3)
    state["curve"].append({"step": 1, "loss": 0.5})
    flow.save(state, tmp_path)
    torch.load(tmp_path / "flow.pt", weights_only=True)
    again = flow.resume(tmp_path / "flow.pt", "cpu")
    assert (again["step"], again["curve"]) == (1, state["curve"])
    for name in ("model", "average"):
        pairs = zip(state[name].parameters(), again[name].parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert len(again["optimizer"].state) == len(state["optimizer"].state) > 0


def test_nothing_is_unpickled_that_could_run_code():
    for folder in ("src", "training", "benchmarks", "comfyui"):
        for path in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.load":
                    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
                    assert words.get("weights_only") == "True", path
