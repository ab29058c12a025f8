"""Finished runs of a calibration in a file, so that a killed one goes on where it stopped."""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from tacache.errors import ProfileError
from tacache.profile import Profile

START = '{"job": '  # how every line of such a file begins


class FinishedRuns:
    """Profiles of finished runs as JSON lines, each with the job it belongs to."""

    def __init__(self, path: str | Path | None, job: str) -> None:
        self._path, self._job = (None if path is None else Path(path)), job

    def load(self) -> dict[int, Profile]:
        """The runs that are done; a file of another job is an error, a torn line is not."""
        if self._path is None or not self._path.exists():
            return {}
        lines = self._path.read_bytes().decode(errors="replace").split("\n")
        if not all(START.startswith(line[: len(START)]) for line in lines):
            raise ProfileError(f"{self._path} is no file of finished runs: name another one")
        found = (self._run(i, line) for i, line in enumerate(lines, 1))
        return dict(run for run in found if run is not None)

    def add(self, run: int, profile: Profile) -> None:
        """Append one finished run, on a line of its own after a torn one.

        Nothing is taken back: other processes add to the same file.
        """
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"job": self._job, "run": run, "profile": json.loads(profile.to_json())}
        with self._path.open("ab") as file:
            torn = file.tell() > 0 and not self._path.read_bytes().endswith(b"\n")
            file.write(b"\n" * torn + json.dumps(entry).encode() + b"\n")

    def _run(self, number: int, line: str) -> tuple[int, Profile] | None:
        """The run of a whole line; a torn one has none, and is run again."""
        try:
            entry = json.loads(line)
        except ValueError:
            return None
        try:
            job, run, fields = entry["job"], entry["run"], entry["profile"]
        except KeyError as error:
            raise ProfileError(f"{self._path}, line {number} is damaged: delete it") from error
        if job != self._job:
            raise ProfileError(
                f"{self._path} holds runs of another calibration: delete it, or give the "
                "model, prompts, seeds and arguments it was started with"
            )
        return run, Profile.from_json(json.dumps(fields), str(self._path))


def digest(value: Any) -> str:
    """A short text that differs where the value does, for tensors and pictures too."""
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
    """By name, code and what it holds: where it lies in memory differs in every process."""
    if isinstance(value, functools.partial):
        return digest([value.func, value.args, value.keywords])
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"
    code = getattr(value, "__code__", None)
    if code is None:
        return name
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    constants = [one for one in code.co_consts if not hasattr(one, "co_code")]
    return digest([name, code.co_code.hex(), constants, value.__defaults__, held])
