"""Work shared between processes: who takes what, and on which device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacache.diffusers import pipeline_loading
from tacache.work.processes import Claims, Processes


def test_every_item_is_taken_once(tmp_path):
    one, other = Claims(tmp_path), Claims(tmp_path)
    taken = [one.take(0), other.take(0), other.take(1), one.take(1), one.take(2)]
    assert taken == [True, False, True, False, True]


def test_one_process_takes_everything_and_writes_nothing(tmp_path):
    with Processes(0, 1).claiming(tmp_path) as claims:
        assert all(claims.take(i) for i in range(3))
    assert not list(tmp_path.iterdir())


def test_claims_are_of_one_run_and_gone_after_it(tmp_path, monkeypatch):
    """Two processes, played by one after the other with the same word from process 0."""
    (tmp_path / "claims-of-a-killed-run").mkdir()
    monkeypatch.setattr(
        "tacache.work.processes.Together.exchange",
        lambda self, value: [value and "word"] * self.count,
    )
    seen: list[Path] = []
    with Processes(1, 2).claiming(tmp_path) as second:
        assert second.take(0)
        seen += [path for path in tmp_path.iterdir() if path.name == "claims-word"]
    with Processes(0, 2).claiming(tmp_path) as first:
        pass
    assert first.folder == second.folder
    assert len(seen) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rank", "devices", "expected"), [(3, 8, 3), (3, 1, 0), (11, 4, 3)])
def test_more_processes_than_devices_share_them(monkeypatch, rank, devices, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    assert pipeline_loading.default_device() == f"cuda:{expected}"
