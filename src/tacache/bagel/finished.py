"""Finished runs of a calibration in a file, so that a killed one goes on where it stopped."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacache.bagel.making import Job
from tacache.bagel.runs import denoiser_name, model_name
from tacache.errors import ProfileError
from tacache.profile import Profile


def job_key(model: Any, jobs: Sequence[Job], call: Mapping[str, Any]) -> str:
    """A hash of what the runs depend on, so that files of different work do not mix."""
    who = [type(model).__name__, denoiser_name(model), model_name(model)]
    content = [who, [list(job) for job in jobs], sorted((k, _digest(v)) for k, v in call.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _digest(value: Any) -> str:
    """A text that differs where the value does; a picture's own would name its place in memory."""
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return repr(value)


class FinishedRuns:
    """Profiles of finished runs as JSON lines, each with the work it belongs to."""

    def __init__(self, path: str | Path | None, job: str) -> None:
        self._path, self._job = (None if path is None else Path(path)), job

    def load(self) -> dict[int, Profile]:
        """The runs that are done; a file of other work is an error, a torn last line is not."""
        if self._path is None or not self._path.exists():
            return {}
        *lines, _torn = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        done = {}
        for i, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                job, run, fields = entry["job"], entry["run"], entry["profile"]
            except (ValueError, KeyError, TypeError) as error:
                raise ProfileError(
                    f"{self._path}, line {i} is no finished run: delete the file, or name another"
                ) from error
            if job != self._job:
                raise ProfileError(
                    f"{self._path} holds runs of another calibration: delete it, or give the "
                    "model, prompts, seeds and arguments it was started with"
                )
            done[run] = Profile.from_json(json.dumps(fields), str(self._path))
        return done

    def add(self, run: int, profile: Profile) -> None:
        """Append one finished run, over what is left of a torn line."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"job": self._job, "run": run, "profile": json.loads(profile.to_json())}
        with self._path.open("ab") as file:
            file.truncate(self._path.read_bytes().rfind(b"\n") + 1)
            file.write(json.dumps(entry).encode() + b"\n")
