"""A benchmark runs every method from the same noise on the same model and writes records.

job = BenchJob(["tasu", "magcache"], [13, 10], prompts=..., calibration=..., call={})
records = run_bench(pipe, job, "results.jsonl")
"""

from typing import TYPE_CHECKING, Any

from tacache_lab.bench.records import Fidelity, Machine, Record, RecordError, TunedOn, read_records

if TYPE_CHECKING:
    from tacache_lab.bench.runner import run_bench
    from tacache_lab.bench.tasks import BenchJob

__all__ = [
    "BenchJob",
    "Fidelity",
    "Machine",
    "Record",
    "RecordError",
    "TunedOn",
    "read_records",
    "run_bench",
]


def __getattr__(name: str) -> Any:
    """Return what runs a model loads diffusers, so it is loaded when it is asked for."""
    if name in ("BenchJob", "run_bench"):
        from tacache_lab.bench import runner

        return getattr(runner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
