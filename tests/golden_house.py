"""What tiny-flux comes to, by command: plans that are fitted and records of a small benchmark.

`python -m tests.golden_house` writes the golden file anew. Do that only where a change of the
method means other numbers, and say why in the commit.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "house.json"
FIT = ["fit", "tiny-flux", "--count", "4", "--steps", "16", "--evaluations", "5,8",
       "--max-evaluations", "400"]  # fmt: skip
BENCH = [
    "bench", "tiny-flux", "--count", "1", "--steps", "10", "--evaluations", "5", "--fine", "20",
    "--methods", "full,tasu,tasu-10,damped,fewer,magcache,taylorseer-1,ab2,diffusers-fbcache",
    "--calibration-count", "2", "--trace",
]  # fmt: skip
# of a plan, what a fit decides
PLAN = ("rule", "times", "anchors", "weights", "memory", "samples", "breaks", "certificate", "host")
# of a record, what no clock and no machine decides
RECORD = (
    "method", "evaluations", "prompt", "seed", "status", "reason", "settings", "evaluated",
    "to_full", "to_fine", "prepare_evaluations", "worth", "steps", "fine", "host", "traces",
)  # fmt: skip
TOLERANCE = 1e-5  # relative; processors round differently


def measured(folder: Path) -> dict[str, Any]:
    """The plans and records that the commands make in an empty folder."""
    for arguments in ([*FIT, "-o", "plans"], [*BENCH, "-o", "records.jsonl"]):
        command = [sys.executable, "-m", "tacache", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    plans = {
        path.name: _fields(path.read_text(), PLAN)
        for path in (folder / "plans").glob("*.plan.json")
    }
    for plan in plans.values():
        del plan["certificate"]["date"]
    lines = (folder / "records.jsonl").read_text().splitlines()
    records = {_name(json.loads(line)): _fields(line, RECORD) for line in lines}
    return {"plans": dict(sorted(plans.items())), "records": dict(sorted(records.items()))}


def differences(found: Any, golden: Any, where: str = "") -> list[str]:
    """Where two values differ: numbers by more than the tolerance, all else at all."""
    if isinstance(golden, dict) and isinstance(found, dict) and golden.keys() == found.keys():
        return [
            d for name in golden for d in differences(found[name], golden[name], f"{where}/{name}")
        ]
    if isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        pairs = enumerate(zip(found, golden, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}/{i}")]
    floats = isinstance(golden, float) and isinstance(found, float)
    if floats and math.isclose(found, golden, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return []
    return [] if found == golden else [f"{where}: {found!r} for {golden!r}"]


def _fields(text: str, names: tuple[str, ...]) -> dict[str, Any]:
    content = json.loads(text)
    return {name: content[name] for name in names if name in content}


def _name(record: dict[str, Any]) -> str:
    return f"{record['method']} at {record['evaluations']}: {record['prompt']}, {record['seed']}"


def main() -> None:
    """Write the golden file."""
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(measured(Path(folder)), indent=1) + "\n")


if __name__ == "__main__":
    main()
