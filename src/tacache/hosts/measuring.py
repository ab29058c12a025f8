"""Calibration on a host: full runs of prompts and seeds are measured into one profile."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from tacache.calibration import measure_all
from tacache.errors import HostError, named
from tacache.hosts.base import Call, Host
from tacache.profile import Profile
from tacache.prompts import Sample, as_prompts, fingerprint, samples_of
from tacache.storage.finished import FinishedRuns, job_key

Batch = tuple[Sample, ...]


def calibrate(
    host: Host,
    prompts: str | Path | Iterable[str] | None,
    *,
    call: Call,
    seeds: Sequence[int] | None = None,
    batch_size: int = 1,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Profile:
    """Return the profile of full-step runs of a host, one per prompt and seed.

    `prompts` is a list or a file; None where the call brings embeddings (then one run a seed).
    `batch_size` samples go into one call. `resume` names a file that keeps finished runs, so that
    a killed calibration goes on where it stopped. Processes of one launcher share the runs out.
    """
    if batch_size < 1:
        raise HostError(f"batch_size is at least 1, not {batch_size}")
    host.check(call)
    texts = None if prompts is None else as_prompts(prompts)
    samples = samples_of(texts, seeds)
    size = 1 if texts is None else batch_size  # embeddings may be a batch already
    runs = [tuple(samples[i : i + size]) for i in range(0, len(samples), size)]

    def measured(number: int, batch: Batch) -> Profile:
        with named(", ".join(map(str, batch))), torch.no_grad():
            return host.record(batch, call)

    with host.quiet():
        profile = measure_all(
            runs,
            measured,
            finished=FinishedRuns(resume, job_key(host.identity(call), runs, call)),
            processes=host.processes(),
            progress=progress,
        )
    known = {"prompts_sha256": None if texts is None else fingerprint(texts)}
    return profile.model_copy(update={"origin": profile.origin.model_copy(update=known)})
