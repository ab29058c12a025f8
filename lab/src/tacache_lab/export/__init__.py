"""Samples for the benchmarks of the field, in the layouts their evaluators read, and back.

entries = read_entries("geneval", [Path("evaluation_metadata.jsonl")])
wanted = plan_samples("geneval", entries)
request = ExportRequest("geneval", call, steps=50, plan=("flux", plan))
records = run_export(PipelineHost(pipe), request, entries, wanted, "out")
add_scores("geneval", Path("out"), [Path("results.jsonl")])  # what the evaluator says
"""

from pathlib import Path

from tacache.errors import TACacheError


def records_file(folder: str | Path) -> Path:
    """Return the records of an export: beside its folder, where no evaluator stumbles over them."""
    folder = Path(folder)
    if folder.name in ("", ".."):
        raise TACacheError(
            f"records lie beside the folder and are named after it: give {folder} by its name, "
            f"such as ../{folder.resolve().name}"
        )
    return folder.with_name(f"{folder.name}.jsonl")
