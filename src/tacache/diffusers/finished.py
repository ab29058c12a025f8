"""Finished runs of a calibration in a file, so that a killed one goes on where it stopped."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tacache.diffusers.fingerprint import describe
from tacache.diffusers.runs import Run
from tacache.errors import ProfileError
from tacache.profile import Profile

START = '{"job": '  # how every line of such a file begins


class FinishedRuns:
    """Profiles of finished runs as JSON lines, each with the job it belongs to."""

    def __init__(self, path: str | Path | None, job: str) -> None:
        self._path, self._job = (None if path is None else Path(path)), job

    def load(self) -> dict[int, Profile]:
        """The runs that are done; a file of another job is an error, a torn last line is not."""
        if self._path is None or not self._path.exists():
            return {}
        lines = self._path.read_bytes().decode(errors="replace").splitlines()
        done = {}
        for i, line in enumerate(lines):
            if not line.startswith(START):
                raise ProfileError(f"{self._path} is no file of finished runs: name another one")
            try:
                entry = json.loads(line)
            except json.JSONDecodeError as error:
                if i == len(lines) - 1:  # the kill came while it was being written
                    break
                raise ProfileError(f"{self._path}, line {i + 1} is damaged: delete it") from error
            if entry["job"] != self._job:
                raise ProfileError(
                    f"{self._path} holds runs of another calibration: delete it, or give the "
                    "model, prompts, seeds and arguments it was started with"
                )
            done[entry["run"]] = Profile.from_json(json.dumps(entry["profile"]), str(self._path))
        return done

    def add(self, run: int, profile: Profile) -> None:
        """Append one finished run, over what is left of a torn line."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"job": self._job, "run": run, "profile": json.loads(profile.to_json())}
        with self._path.open("ab") as file:
            whole = self._path.read_bytes().rfind(b"\n") + 1
            if whole != file.tell():
                file.truncate(whole)
            file.write(json.dumps(entry).encode() + b"\n")


def job_key(pipe: Any, scheduler: Any, runs: Sequence[Run], call: dict[str, Any]) -> str:
    """A hash of everything the runs depend on, so that files of different jobs do not mix."""
    host = describe(pipe, scheduler, call)
    content = [
        host.model_dump(mode="json"),
        [list(run) for run in runs],
        str(getattr(pipe, "dtype", None)),
        {name: _digest(value) for name, value in call.items()},
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest(value: Any) -> str:
    """A short text that differs where the value does, for tensors and pictures too."""
    if isinstance(value, list | tuple):
        return " ".join(map(_digest, value))
    if isinstance(value, Tensor):
        value = value.detach().float().cpu().numpy()
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return repr(value)
