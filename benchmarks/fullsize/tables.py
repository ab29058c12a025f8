"""Tables for the documentation, from the records alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.fullsize.records import Record

BEGIN, END = "<!-- fullsize: begin -->", "<!-- fullsize: end -->"
NAMES = {
    "flux": "FLUX.1-dev 1024x1024",
    "wan": "Wan2.1-T2V-1.3B 832x480x81",
    "sd35": "SD3.5-large 1024x1024",
    "qwen": "Qwen-Image 1024x1024",
    "wan22": "Wan2.2-T2V-A14B 832x480x17",
}
HEAD = (
    "| method | evaluations | denoising | speedup | ideal | achieved | a skipped step "
    "| memory above full steps |\n|---|---|---|---|---|---|---|---|"
)


def render(records: Iterable[Record]) -> str:
    """All tables: runs of each model and mode, then stepping, waiting and fits."""
    good = [record for record in records if "error" not in record]
    parts = [part for group in _groups(good) if (part := runs_table(group))]
    parts += [part for part in (stepping_table(good), waiting_lines(good), fit_lines(good)) if part]
    return "\n\n".join(parts)


def _groups(records: list[Record]) -> Iterator[list[Record]]:
    keys = dict.fromkeys((r["model"], r["mode"]) for r in records if r["what"] == "run")
    for key in keys:
        yield [r for r in records if r["what"] == "run" and (r["model"], r["mode"]) == key]


def runs_table(runs: list[Record]) -> str:
    """One model in one mode; nothing without its full steps."""
    full = next((run for run in runs if run["method"] == "full"), None)
    if full is None:
        return ""
    evaluation = full["evaluated_seconds"]["median"]
    note = f" ({full['note']})" if full.get("note") else ""
    title = (
        f"{NAMES[full['model']]}{note}, {full['mode']}, {full['steps']} steps, {full['device']}: "
        f"one evaluation {evaluation * 1000:.1f} ms, all steps "
        f"{full['loop_seconds']['median']:.2f} s, the rest of the call (decoding, where it is "
        f"not left out) {full['rest_seconds']['median']:.2f} s."
    )
    rows = (run_row(run, full) for run in runs if run["method"] != "full")
    return "\n".join([title, "", HEAD, *rows])


def summary(records: Iterable[Record]) -> str:
    """One short table: every model, mode and method, its speedup beside the ideal N / K."""
    good = [record for record in records if "error" not in record]
    rows = [row for group in _groups(good) for row in _summary_rows(group)]
    head = (
        "| model | mode | method | evaluations | speedup, of the ideal N / K | a skipped step |\n"
        "|---|---|---|---|---|---|"
    )
    return "\n".join([head, *rows]) if rows else ""


def _summary_rows(runs: list[Record]) -> Iterator[str]:
    full = next((run for run in runs if run["method"] == "full"), None)
    if full is None:
        return
    for run in (run for run in runs if run is not full):
        speedup, ideal = speedups(run, full)
        skip = run["skip_us"]["median"] / 1e6
        yield (
            f"| {NAMES[run['model']]} | {run['mode']} | {run['method']} | {run['evaluations']:g} "
            f"| {speedup:.2f}x of {ideal:.2f}x ({100 * speedup / ideal:.1f} %) | {_time(skip)} |"
        )


def speedups(run: Record, full: Record) -> tuple[float, float]:
    """What denoising gained, and what it would gain where only evaluations take time."""
    speedup = full["loop_seconds"]["median"] / run["loop_seconds"]["median"]
    return speedup, run["steps"] / run["evaluations"]


def run_row(run: Record, full: Record) -> str:
    """A method at a budget beside full steps."""
    speedup, ideal = speedups(run, full)
    skip = run["skip_us"]["median"] / 1e6
    share = skip / full["evaluated_seconds"]["median"]
    extra = run["peak_bytes"] - full["peak_bytes"]
    latents = extra / run["latent_bytes"]
    return (
        f"| {run['method']} | {run['evaluations']:g} | {run['loop_seconds']['median']:.2f} s "
        f"| {speedup:.2f}x | {ideal:.2f}x | {100 * speedup / ideal:.1f} % "
        f"| {_time(skip)} ({100 * share:.3g} %) | {extra / 2**20:.1f} MiB ({latents:.1f} latents) |"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def stepping_table(records: list[Record]) -> str:
    """Skipped steps alone, launch after launch."""
    found = [r for r in records if r["what"] == "stepping"]
    if not found:
        return ""
    head = (
        "Stepping alone, a hundred in a row, launches included:\n\n"
        "| model | dtype | first skip | later skip | fitted interval | one pass |\n"
        "|---|---|---|---|---|---|"
    )
    kinds = ("first_skip_us", "later_skip_us", "fitted_interval_us", "one_pass_us")
    rows = (
        f"| {NAMES[r['model']]} | {r['latent_dtype']} | "
        + " | ".join(f"{r[kind]['median']:.0f} us" for kind in kinds)
        + " |"
        for r in found
    )
    return "\n".join([head, *rows])


def waiting_lines(records: list[Record]) -> str:
    """Whether a plan waits more often than full steps with as many evaluations."""
    lines = []
    for record in records:
        if record["what"] == "waiting":
            counts = {who: sum(found.values()) for who, found in record["trace"].items()}
            steps = {who: sum(found) for who, found in record["steps_waiting"].items()}
            lines.append(
                f"- {NAMES[record['model']]}: {counts['planned']} waits in the trace of a planned "
                f"call, {counts['plain']} in a plain one with as many evaluations; in the "
                f"scheduler's steps {steps['planned']} and {steps['plain']}."
            )
    return "\n".join(lines)


def fit_lines(records: list[Record]) -> str:
    """Time to first plan."""
    return "\n".join(
        f"- {NAMES[r['model']]}: a fitted plan of {r['budget']} evaluations from "
        f"{r['setting']['samples']} samples in {r['seconds']['median']:.0f} s "
        f"({r['evaluations_spent']} evaluations, {r['mode']})."
        for r in records
        if r["what"] == "fit"
    )


def between_markers(text: str) -> str:
    """What a document has between the markers."""
    return text.split(BEGIN)[1].split(END)[0].strip()


def write(path: Path, rendered: str) -> None:
    """Put the tables between the markers of a document."""
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{path} has no markers {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{rendered}\n{END}{after}")
