"""Finished runs: what a kill leaves is no harm, and nobody's file is lost."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.forked import PROCESSES

import tacache
from tacache.errors import ProfileError
from tacache.storage.finished import FinishedRuns, digest


@pytest.fixture(scope="module")
def profile():
    noise = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    return tacache.calibrate(lambda x, t: x * t, noise, tacache.time_grid(4))


def test_what_is_added_is_there(tmp_path, profile):
    runs = FinishedRuns(tmp_path / "deep" / "x.runs", "job")
    assert runs.load() == {}
    runs.add(3, profile)
    runs.add(1, profile)
    assert runs.load() == {3: profile, 1: profile}


def test_without_a_file_nothing_is_kept(profile):
    runs = FinishedRuns(None, "job")
    runs.add(0, profile)
    assert runs.load() == {}


@pytest.mark.slow
def test_what_several_processes_add_is_all_there(tmp_path, profile):
    path = tmp_path / "x.runs"
    path.write_text('{"job": "job", "ru')
    workers = [PROCESSES.Process(target=add_some, args=(path, profile, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert FinishedRuns(path, "job").load().keys() == set(range(90))


def add_some(path, profile, number):
    for run in range(30):
        FinishedRuns(path, "job").add(30 * number + run, profile)


@pytest.mark.parametrize(
    "change",
    [
        {"run": [1]},
        {"run": True},
        {"run": -1},
        {"run": "1"},
        {"profile": 3},
        {"profile": [[[]]]},
        {"samples": 10**6},
    ],
)
def test_a_damaged_run_is_named(tmp_path, profile, change):
    path = tmp_path / "x.runs"
    fields = profile.as_fields() | {"samples": change.pop("samples", profile.samples)}
    entry = {"job": "job", "run": 1, "profile": fields} | change
    path.write_text(json.dumps(entry) + "\n")
    with pytest.raises(ProfileError, match=r"x\.runs"):
        FinishedRuns(path, "job").load()


def test_runs_of_another_job_are_refused(tmp_path, profile):
    path = tmp_path / "x.runs"
    FinishedRuns(path, "other").add(0, profile)
    with pytest.raises(ProfileError, match="finished runs of another calibration"):
        FinishedRuns(path, "job").load()


def test_a_digest_differs_where_the_value_does():
    one, two = torch.zeros(3), torch.ones(3)
    assert digest(one) != digest(two)
    assert digest(one) == digest(one.clone())
    assert digest([one, 1]) != digest([one, 2])
    assert digest(np.zeros(2)) != digest(np.ones(2))
    assert digest(one.to(torch.bfloat16)) == digest(one)
    assert digest(torch.zeros(2, 2)) != digest(torch.zeros(4))
    assert digest([[1], 2]) != digest([1, [2]])
    assert digest({"a": one}) == digest({"a": one.clone()}) != digest({"a": two})
    assert digest(digest).startswith("('tacache.storage.finished.digest' ")
    assert digest(functools.partial(digest, one)) != digest(functools.partial(digest, two))


def edited(by):
    return lambda pipe, step, t, tensors: {"latents": tensors["latents"] * by}


@pytest.mark.slow
def test_functions_are_alike_in_another_process_and_differ_by_what_they_do():
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from tests.storage.test_finished import edited; "
        "from tacache.storage.finished import digest; print(digest([edited(2.0), len]))"
    )
    here = str(Path(__file__).parents[2])
    elsewhere = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True)
    assert elsewhere.stdout.strip() == digest([edited(2.0), len])
    assert digest(edited(2.0)) != digest(edited(3.0))
    assert digest(lambda: 1) != digest(lambda: 2)
