"""Finished runs of a calibration in a file, so that a killed one goes on where it stopped."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tacache.errors import ProfileError
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.storage.journal import Journal

MAX_SAMPLES = 10_000  # of one run: a batch, times the walks of the pipelines that repeat theirs


class FinishedRuns:
    """Profiles of finished runs by their numbers, kept for the job they belong to."""

    def __init__(self, path: str | Path | None, job: str) -> None:
        place = None if path is None else Path(path)
        self._journal = Journal(place, {"job": job}, "finished runs", "calibration", ProfileError)

    def load(self) -> dict[int, Profile]:
        """Return the runs that are done; a file of another job is an error."""
        return dict(self._journal.read(self._run_of))

    def add(self, run: int, profile: Profile) -> None:
        """Keep one finished run; other processes may add to the same file."""
        self._journal.append({"run": run, "profile": profile.as_fields()})

    def _run_of(self, entry: dict[str, Any]) -> tuple[int, Profile]:
        run, fields = entry["run"], entry["profile"]
        if type(run) is not int or run < 0:
            raise TypeError("the number of a run is a whole one")
        profile = Profile.from_json(json.dumps(fields), str(self._journal.path))
        if profile.samples > MAX_SAMPLES:  # it would outweigh all others
            raise ValueError(f"one run has no {profile.samples} samples")
        return run, profile


def job_key(identity: object, runs: Sequence[Sequence[Sample]], call: Mapping[str, Any]) -> str:
    """Return a hash of all that the runs depend on, so that files of other work do not mix.

    `identity` is what a host says of itself, and `runs` are the samples of each of its calls.
    """
    asked = {name: digest(value) for name, value in call.items()}
    content = [identity, [[list(sample) for sample in batch] for batch in runs], asked]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(value: Any) -> str:
    """Return a short text that differs where the values differ, for tensors and pictures too."""
    if isinstance(value, dict):
        value = [part for item in sorted(value.items(), key=str) for part in item]
    if isinstance(value, list | tuple):
        return f"({' '.join(map(digest, value))})"
    if isinstance(value, Tensor):
        values = value.detach().float().cpu().numpy().tobytes()
        return f"{tuple(value.shape)} {hashlib.sha256(values).hexdigest()}"
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return _of_function(value) if callable(value) else repr(value)


def _of_function(value: Any) -> str:
    """Describe a function by its name, code and closure: its address differs in every process."""
    if isinstance(value, functools.partial):
        return digest([value.func, value.args, value.keywords])
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"
    code = getattr(value, "__code__", None)
    if code is None:
        return name
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    constants = [constant for constant in code.co_consts if not hasattr(constant, "co_code")]
    return digest([name, code.co_code.hex(), constants, value.__defaults__, held])
