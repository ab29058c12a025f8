"""What the finished runs of a pipeline's calibration belong to."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tacache.diffusers.fingerprint import describe
from tacache.diffusers.runs import Run
from tacache.storage.finished import digest


def job_key(pipe: Any, scheduler: Any, runs: Sequence[Run], call: dict[str, Any]) -> str:
    """A hash of everything the runs depend on, so that files of different jobs do not mix."""
    host = describe(pipe, scheduler, call)
    content = [
        host.model_dump(mode="json"),
        [list(run) for run in runs],
        str(getattr(pipe, "dtype", None)),
        {name: digest(value) for name, value in call.items()},
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
