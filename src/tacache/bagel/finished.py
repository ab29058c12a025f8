"""What the finished runs of a calibration of BAGEL belong to."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tacache.bagel.making import Job
from tacache.bagel.runs import denoiser_name, model_name
from tacache.storage.finished import digest


def job_key(model: Any, jobs: Sequence[Job], call: Mapping[str, Any]) -> str:
    """A hash of what the runs depend on, so that files of different work do not mix."""
    who = [type(model).__name__, denoiser_name(model), model_name(model)]
    content = [who, [list(job) for job in jobs], sorted((k, digest(v)) for k, v in call.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
