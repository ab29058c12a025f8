"""Finished runs of a calibration in a file, so that a killed one goes on where it stopped."""

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
        """The runs that are done; a file of another job is an error, a torn last line is not."""
        if self._path is None or not self._path.exists():
            return {}
        *lines, torn = self._path.read_bytes().decode(errors="replace").split("\n")
        begun = START.startswith(torn[: len(START)])
        if not begun or not all(line.startswith(START) for line in lines):
            raise ProfileError(f"{self._path} is no file of finished runs: name another one")
        return dict(self._run(i, line) for i, line in enumerate(lines, 1))

    def add(self, run: int, profile: Profile) -> None:
        """Append one finished run, over what is left of a torn line."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"job": self._job, "run": run, "profile": json.loads(profile.to_json())}
        with self._path.open("ab") as file:
            file.truncate(self._path.read_bytes().rfind(b"\n") + 1)
            file.write(json.dumps(entry).encode() + b"\n")

    def _run(self, number: int, line: str) -> tuple[int, Profile]:
        """The run of a whole line."""
        try:
            entry = json.loads(line)
            job, run, fields = entry["job"], entry["run"], entry["profile"]
        except (ValueError, KeyError) as error:
            raise ProfileError(f"{self._path}, line {number} is damaged: delete it") from error
        if job != self._job:
            raise ProfileError(
                f"{self._path} holds runs of another calibration: delete it, or give the "
                "model, prompts, seeds and arguments it was started with"
            )
        return run, Profile.from_json(json.dumps(fields), str(self._path))


def digest(value: Any) -> str:
    """A short text that differs where the value does, for tensors and pictures too."""
    if isinstance(value, list | tuple):
        return " ".join(map(digest, value))
    if isinstance(value, Tensor):
        value = value.detach().float().cpu().numpy()
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return repr(value)
