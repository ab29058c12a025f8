import threading
from types import SimpleNamespace

import torch
from tests.demo_support import demo_of

from tacache_lab.demo import demo_runs
from tacache_lab.demo.demo_request import DemoRequest
from tacache_lab.demo.demo_runs import DemoRun, draw

RUNS = [DemoRun("tiny-flux", 50, [13]), DemoRun("tiny-flux", 28, [10]), DemoRun("turbo", 8, [6])]


def test_parts_run_side_by_side_and_keep_their_order(tmp_path, monkeypatch):
    last_is_done, shown, written = threading.Event(), {}, []

    def draw_run(run, pipe, request, progress, *, out, calibrate):
        if run.steps == 50:
            assert last_is_done.wait(60)  # with no second core this would never come
        if run.steps == 8:
            last_is_done.set()
        shown[run.steps] = (pipe.model, request.part, progress)
        return demo_of().model_copy(update={"model": run.model, "steps": run.steps})

    def load(model, *, progress):
        return SimpleNamespace(model=model, device=torch.device("cpu"))

    monkeypatch.setattr(demo_runs.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(demo_runs, "load", load)
    monkeypatch.setattr(demo_runs, "draw_run", draw_run)
    monkeypatch.setattr(demo_runs, "write_files", lambda result, out: written.append(result))
    result = draw(RUNS, DemoRequest(("a cat",), {}), tmp_path, calibrate=False, progress=True)
    assert [(one.model, one.steps) for one in result.all_runs()] == [run[:2] for run in RUNS]
    assert written == [result]
    assert shown == {
        50: ("tiny-flux", "", True),
        28: ("tiny-flux", "tiny-flux-28", False),
        8: ("turbo", "turbo-8", False),
    }
