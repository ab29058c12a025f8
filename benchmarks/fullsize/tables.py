"""Tables for the documentation, from the records alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.fullsize.records import Record

BEGIN, END = "<!-- fullsize: begin -->", "<!-- fullsize: end -->"
NAMES = {
    "flux": "FLUX.1-dev 1024x1024",
    "wan": "Wan2.1-T2V-1.3B 832x480x81",
    "sd35": "SD3.5-large 1024x1024",
    "qwen": "Qwen-Image 1024x1024",
    "wan22": "Wan2.2-T2V-A14B 832x480x17",
    "qwen21": "Qwen-Image-2.1 1024x1024",
    "ltx2": "LTX-2 768x512x121 with sound",
}
HEAD = (
    "| method | evaluations | denoising | speedup | ideal | achieved | with decoding "
    "| a skipped step | by difference | memory above full steps |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def render(records: Iterable[Record]) -> str:
    """All tables: runs of each model and mode, then stepping, waiting and fits."""
    good = [record for record in records if "error" not in record]
    parts = [part for group in _groups(good) if (part := runs_table(group))]
    parts += [part for part in (stepping_table(good), waiting_lines(good), fit_lines(good)) if part]
    return "\n\n".join(parts)


def _groups(records: list[Record]) -> Iterator[list[Record]]:
    """Runs that may be compared: of one model in one mode, as many steps, on one device."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for r in records:
        if r["what"] == "run":
            groups.setdefault((r["model"], r["mode"], r["steps"], r["device"]), []).append(r)
    yield from groups.values()


def runs_table(runs: list[Record]) -> str:
    """One model in one mode; nothing without its full steps."""
    full = next((run for run in runs if run["method"] == "full"), None)
    if full is None:
        return ""
    evaluation = full["evaluated_seconds"]["median"]
    note = f" ({full['note']})" if full.get("note") else ""
    rest = full["rest_seconds"]["median"] if "rest_seconds" in full else None
    decoding = "" if rest is None else f", the rest of the call (decoding) {rest:.2f} s"
    title = (
        f"{NAMES[full['model']]}{note}, {full['mode']}, {full['steps']} steps, {full['device']}: "
        f"one evaluation {evaluation * 1000:.1f} ms, all steps "
        f"{full['loop_seconds']['median']:.2f} s{decoding}. Whole runs: {_repeats(runs)}."
    )
    others = [run for run in runs if run["method"] != "full"]
    rows = (run_row(run, full) for run in others)
    return "\n".join([title, "", HEAD, *rows, *_notes(others, full)])


def _notes(runs: list[Record], full: Record) -> list[str]:
    """What records say of themselves, unless all of the model do, below their table."""
    said: dict[str, list[str]] = {}
    for run in runs:
        note = run.get("note", "").removeprefix(full.get("note", "")).removeprefix("; ")
        if note:
            said.setdefault(note, []).append(f"{run['method']} {run['evaluations']:g}")
    return ["", *(f"{', '.join(which)}: {note}." for note, which in said.items())] if said else []


def _repeats(runs: list[Record]) -> str:
    """How many whole runs were made, by the methods they were made with."""
    methods: dict[int, dict[str, None]] = {}
    for run in runs:
        methods.setdefault(run["repeats"], {})[run["method"]] = None
    return "; ".join(f"{n} of {', '.join(names)}" for n, names in sorted(methods.items()))


def summary(records: Iterable[Record], budget: int = 13) -> str:
    """One short table: of every method its speedup at one budget on every model, of the ideal."""
    good = [r for r in records if "error" not in r and r.get("budget") in (None, budget)]
    groups = list(_groups(good))
    told = [
        form
        for key, form in (("device", "{device}"), ("steps", "{steps} steps"))
        if len({r[key] for group in groups for r in group}) > 1
    ]
    columns = {title: group for group in groups if (title := _column(group, told))}
    methods = dict.fromkeys(
        run["method"] for runs in columns.values() for run in runs if run["method"] != "full"
    )
    rows = (
        " | ".join([f"| {name}", *(_cell(name, runs) for runs in columns.values())]) + " |"
        for name in methods
    )
    head = " | ".join([f"| {budget} evaluations of {_steps(good)}", *columns]) + " |"
    return "\n".join([head, "|---" * (len(columns) + 1) + "|", *rows]) if methods else ""


def _steps(records: list[Record]) -> str:
    return ", ".join(str(n) for n in sorted({r["steps"] for r in records if r["what"] == "run"}))


def _column(runs: list[Record], told: list[str]) -> str:
    """A model and mode as the head of a column, with what is told of its runs besides.

    Nothing without its full steps.
    """
    full = next((run for run in runs if run["method"] == "full"), None)
    if full is None:
        return ""
    besides = (form.format_map(full) for form in told)
    return ", ".join([NAMES[full["model"]], full["mode"], *besides])


def _cell(method: str, runs: list[Record]) -> str:
    """Speedup, its share of the ideal, what a skipped step takes and memory above full steps."""
    by_method = {run["method"]: run for run in runs}
    if method not in by_method:
        return "-"
    run, full = by_method[method], by_method["full"]
    speedup, ideal = speedups(run, full)
    parts = [
        f"{speedup:.2f}x ({100 * speedup / ideal:.1f} %)",
        _time(run["skip_us"]["median"] / 1e6),
    ]
    extra = latents_above(run, full)
    plural = "" if extra is not None and round(extra) == 1 else "s"
    return ", ".join(parts if extra is None else [*parts, f"{extra:.0f} latent{plural}"])


def full_loop(run: Record, full: Record) -> float:
    """Seconds of all steps: a record from another run than its table's brings those of its own."""
    return float(run.get("full_loop_seconds", full["loop_seconds"]["median"]))


def speedups(run: Record, full: Record) -> tuple[float, float]:
    """What denoising gained, and what it would gain where only evaluations take time."""
    speedup = full_loop(run, full) / run["loop_seconds"]["median"]
    return speedup, run["steps"] / run["evaluations"]


def with_decoding(run: Record, full: Record) -> str:
    """What whole calls gained, decoding included; ~ with the full call's decoding for its own."""
    if "rest_seconds" not in full:
        return "-"
    rest = full["rest_seconds"]["median"]
    same = full["decoded"] and "full_loop_seconds" not in run
    total = full["total_seconds"]["median"] if same else full_loop(run, full) + rest
    if run["decoded"]:
        return f"{total / run['total_seconds']['median']:.2f}x"
    return f"~{total / (run['loop_seconds']['median'] + rest):.2f}x"


def by_difference(run: Record, full: Record) -> float:
    """Seconds a skipped step: the loop beyond its evaluations, as long as full steps take them."""
    slower = full_loop(run, full) / full["loop_seconds"]["median"]
    evaluations, evaluation = run["evaluations"], slower * full["evaluated_seconds"]["median"]
    beyond = run["loop_seconds"]["median"] - evaluations * evaluation
    return float(beyond / max(run["steps"] - evaluations, 1))


def run_row(run: Record, full: Record) -> str:
    """A method at a budget beside full steps."""
    speedup, ideal = speedups(run, full)
    skip = run["skip_us"]["median"] / 1e6
    share = skip / full["evaluated_seconds"]["median"]
    return (
        f"| {run['method']} | {run['evaluations']:g} | {run['loop_seconds']['median']:.2f} s "
        f"| {speedup:.2f}x | {ideal:.2f}x | {100 * speedup / ideal:.1f} % "
        f"| {with_decoding(run, full)} | {_time(skip)} ({100 * share:.3g} %) "
        f"| {_time(by_difference(run, full))} | {memory_above(run, full)} |"
    )


def latents_above(run: Record, full: Record) -> float | None:
    """Peak memory above that of full steps, in latents; None where it was not kept."""
    if "peak_bytes" not in run or "peak_bytes" not in full:
        return None
    return float((run["peak_bytes"] - full["peak_bytes"]) / run["latent_bytes"])


def memory_above(run: Record, full: Record) -> str:
    """The same in words."""
    latents = latents_above(run, full)
    if latents is None:
        return "-"
    return f"{latents * run['latent_bytes'] / 2**20:.1f} MiB ({latents:.1f} latents)"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if abs(seconds) < 1e-3 else f"{seconds * 1e3:.1f} ms"


def stepping_table(records: list[Record]) -> str:
    """Skipped steps alone, launch after launch."""
    stepping = [r for r in records if r["what"] == "stepping"]
    if not stepping:
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
        for r in stepping
    )
    notes = (f"\n{NAMES[r['model']]}: {r['note']}." for r in stepping if r.get("note"))
    return "\n".join([head, *rows, *notes])


def waiting_lines(records: list[Record]) -> str:
    """Whether a plan waits more often than full steps with as many evaluations."""
    lines = []
    for record in records:
        if record["what"] == "waiting":
            counts = {who: sum(waits.values()) for who, waits in record["trace"].items()}
            steps = {who: sum(waits) for who, waits in record["steps_waiting"].items()}
            idle = record["idle_us"]
            lines.append(
                f"- {NAMES[record['model']]}: {counts['planned']} waits in the trace of a planned "
                f"call, {counts['plain']} in a plain one with as many evaluations; in the "
                f"scheduler's steps {steps['planned']} and {steps['plain']}. Longest pause of the "
                f"device after the first evaluation: {idle['planned']['longest']:.0f} us with the "
                f"plan, {idle['plain']['longest']:.0f} us without; all of them "
                f"{100 * idle['planned']['share']:.2f} % and {100 * idle['plain']['share']:.2f} % "
                "of the time."
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
