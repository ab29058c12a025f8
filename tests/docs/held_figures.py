"""Every figure of README and the pages, held to the records: `python -m tests.docs.held_figures`.

A figure is a number of decibels, a speedup, a time, a number of Euler steps or a measured number
of evaluations; on pages of results it is every number with decimals as well. `held` has the
sentences with figures that follow from records, and computes them. `UNRECORDED` has those that
follow from none, each with its reason. The script prints what neither of them knows, and what a
page says otherwise than the records do.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import starmap
from statistics import mean, stdev
from typing import Any, NamedTuple

from benchmarks.fullsize.tables import latents_above, speedups, with_decoding
from tests.docs.readme import OURS, RESULTS, ROOT, distances, measured_apart, nearness, packed

from tacache.instant import like_evaluations
from tacache_lab.report.confidence import student_t

# What a command writes is held by the test of that command: its tables say so between markers.
GENERATED = re.compile(
    r"<!-- tacache (?:report|demo):.*?<!-- end -->|<!-- (?P<name>\w[\w-]*): begin -->.*?"
    r"<!-- (?P=name): end -->",
    re.DOTALL,
)
NUMBER = r"(?<![\w.,`/=@+-])-?\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:dB|x|times|Euler steps|ms|us|s|seconds|minutes|min)"
FIGURE = re.compile(
    rf"{NUMBER}(?= {UNIT}\b|x\b)|(?<![\w.,`/=@+-])(?:\d{{3,}}|\d+,\d{{3}})(?= evaluations\b)"
)
DECIMAL = re.compile(r"(?<![\w.,`/=@-])-?\d[\d,]*\.\d+(?![\w.]*[\w/])")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
PAGES_OF_RESULTS = (
    "README.md",
    "docs/explanation/caches.md",
    "docs/explanation/fitting.md",
    "docs/how-to/choose-a-budget.md",
    "docs/how-to/coming-from.md",
    "docs/reference/clips.md",
    "docs/reference/flow.md",
    "docs/reference/others.md",
    "docs/reference/results.md",
    "docs/reference/rivals.md",
)
# Pages, or folders of them, whose figures are of another kind.
OTHER_PAGES = {
    "docs/decisions/": "a decision tells what was tried when it was made",
    "recipes/": "recipes/estimate.py makes the tables, and tests/test_recipes.py holds them",
    "models/src/tacache_models/tiny-flux/": "how it was trained: training/results",
    "models/src/tacache_models/tiny-wan/": "how it was trained: training.json beside it",
    "docs/reference/performance.md": "tests/test_documentation.py holds it to skip_cost.jsonl",
}


class Held(NamedTuple):
    """A piece of a page: its text with a place for each figure, and what the records say."""

    text: str
    values: tuple[float, ...]


class Unrecorded(NamedTuple):
    """A pattern of what no record has, and why it stands there all the same."""

    pattern: str
    reason: str


class Piece(NamedTuple):
    """A stretch of a page that is held or listed, with what the records want it to say."""

    start: int
    end: int
    wanted: str


UNRECORDED = (
    Unrecorded(r"(?:[Aa]bove|below|about|reaches|keep|kept) (?:35|25) dB", "a rule of thumb"),
    Unrecorded(r"[Aa]t least 35 dB", "a rule of thumb"),
    Unrecorded(r"(?:40|35|30) dB and more|\| (?:35 to 40|30 to 35|25 to 30) dB", "a rule of thumb"),
    Unrecorded(r"The goal was 8 dB|The goals were 10 dB", "a goal"),
    Unrecorded(r"(?:to|than|below)\s0\.01 dB", "what benchmarks/recomputed.py lets pass"),
    Unrecorded(r"thresholds for Wan \(0\.03 and 0\.3", "the paper's own"),
    Unrecorded(r"3\.99x and 22\.57 dB", "the paper's own figures on FLUX"),
    Unrecorded(r"50 are 3\.8 times fewer, and nearly 3\.8 times", "50 divided by 13"),
    Unrecorded(
        r"0\.0002 away from the run.{,60}: 0\.0313|end 0\.0012 from the flow",
        "the output of docs/notebooks/velocity-function.ipynb, which runs in a test",
    ),
    Unrecorded(r"\b50 Euler steps", "the run that is compared with"),
    Unrecorded(
        r"(?:(?:result|#) as near to the flow as|same quality as) 28 Euler steps|"
        r"35 dB to (?:the full run|those of the full run)",
        "what an example asks for",
    ),
    Unrecorded(r"table ends at 100 Euler steps, of clips at 80", "the last rows of a table"),
    Unrecorded(
        r"1,050 evaluations beside.{,40} at most 1,550 |3,000 evaluations|"
        r"at most 1,100 evaluations|are 400 evaluations",
        "what a fit may spend, or steps times samples",
    ),
    Unrecorded(r"5\.3 minutes|\(72 s, ", "training/results/turbo.json has the curves"),
    Unrecorded(r"(?:2\.5|24|or 24) times (?:the mean rate|the load|as often)", "how requests come"),
    Unrecorded(r"the model 13 times|transformer 13 times", "a count of one run, by its plan"),
    Unrecorded(r"(?:and|for) (?:15|30) (?:seconds|minutes)", "a limit that the code sets"),
    Unrecorded(r"q_i = \(1 - .*?0\.7\)\)\^\(1 / 0\.85\)", "a formula"),
    Unrecorded(r"more than 0\.05|than 1\.9|PSNR beyond 999 dB|count as 100 dB", "a limit"),
    Unrecorded(r"Python 3\.10|diffusers 0\.42|SD3\.5|37\.6 MB", "a version or a size"),
)


@cache
def psnr(study: str, reference: str = "to_full") -> dict[tuple[str, int | None], float]:
    """Return the mean PSNR of a study, by method and budget."""
    return {key: mean(values) for key, values in measured(study, reference=reference).items()}


def measured(
    study: str, metric: str = "psnr", prompts: int = 24, reference: str = "to_full"
) -> dict[tuple[str, int | None], list[float]]:
    """Return what a study measured to a reference, by method and budget, ordered by prompts."""
    values: dict[tuple[str, int | None], dict[str, float]] = {}
    for record in packed(study):
        if (
            record["status"] == "done"
            and reference in record
            and record["method"] not in ("full", "fine")
        ):
            by_prompt = values.setdefault((record["method"], record.get("evaluations")), {})
            by_prompt[record["prompt"]] = record[reference]["metrics"][metric]
    assert {len(by_prompt) for by_prompt in values.values()} == {prompts}
    return {key: [of[prompt] for prompt in sorted(of)] for key, of in values.items()}


def gain(first: list[float], second: list[float]) -> tuple[float, float]:
    """Return the mean of the differences, and half of its 95 % confidence interval."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    count = len(differences)
    return mean(differences), student_t(count - 1) * stdev(differences) / math.sqrt(count)


@cache
def lines_of(name: str) -> list[dict[str, Any]]:
    """Return the records of a file that is not packed."""
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


def denoising_speedup(method: str, mode: str) -> float:
    """Return how many times faster FLUX denoises with 13 evaluations by a method."""
    runs = [
        record
        for record in lines_of("fullsize.jsonl")
        if record["what"] == "run" and "error" not in record
        if (record["model"], record["mode"]) == ("flux", mode)
    ]
    full = next(run for run in runs if run["method"] == "full")
    ours = next(run for run in runs if (run["method"], run["budget"]) == (method, 13))
    return speedups(ours, full)[0]


def full_size(model: str, mode: str = "eager") -> dict[str, float]:
    """Return what full steps and a fitted plan of 13 evaluations take, and the speedups."""
    runs = [
        record
        for record in lines_of("fullsize.jsonl")
        if record["what"] == "run"
        and "error" not in record
        and (record["model"], record["mode"]) == (model, mode)
    ]
    full = next(run for run in runs if run["method"] == "full")
    ours = next(run for run in runs if (run["method"], run["budget"]) == ("fitted", 13))
    return {
        "full": full["loop_seconds"]["median"],
        "ours": ours["loop_seconds"]["median"],
        "denoising": speedups(ours, full)[0],
        "whole": float(with_decoding(ours, full).strip("~x")),
    }


def served(model: str, times: float) -> dict[str, Any]:
    """Return the latest record of a load on one GPU."""
    records = lines_of("serving-throughput.jsonl")
    return [record for record in records if (record["model"], record["times"]) == (model, times)][
        -1
    ]


def held() -> Iterator[Held]:
    """Yield all sentences with figures that follow from records."""
    yield from starmap(Held, _readme())
    yield from starmap(Held, _recent_models())
    yield from starmap(Held, _flow())
    yield from starmap(Held, _clips())
    yield from starmap(Held, _clips_at_once())
    yield from starmap(Held, _asked())
    yield from starmap(Held, _fits())
    yield from starmap(Held, _galaxies())
    yield from starmap(Held, _serving())
    yield from starmap(Held, _distilled())
    yield from starmap(Held, _rivals())
    yield from starmap(Held, _quality())
    yield from starmap(Held, _optimised())
    settings = ("flux", "flux-fast")
    yield from starmap(Held, _published("main", settings, "flux", "spectrum:flux"))


def _readme() -> Iterator[tuple[str, tuple[float, ...]]]:
    flux, wan, compiled = full_size("flux"), full_size("wan"), full_size("flux", "compiled")
    yield (
        "FLUX.1-dev is {:.2f} times faster and Wan2.1-1.3B {:.2f} times, decoding included; "
        "denoising alone {:.1f} times both ({:.2f} s to {:.2f} s at 1024x1024, {:.1f} s to "
        "{:.1f} s",
        (
            *(flux["whole"], wan["whole"], flux["denoising"]),
            *(flux["full"], flux["ours"], wan["full"], wan["ours"]),
        ),
    )
    yield (
        "FLUX.1-dev {:.2f} times faster at 1024x1024 and {:.2f} times when compiled",
        (flux["denoising"], compiled["denoising"]),
    )
    fit = next(record for record in lines_of("fullsize.jsonl") if record["what"] == "fit")
    yield (
        "took {:.0f} s there ({:.0f} evaluations)",
        (fit["seconds"]["median"], fit["evaluations_spent"]),
    )
    models = ROOT / "models/src/tacache_models"
    plan = json.loads((models / "tiny-flux/plans/17-flow.plan.json").read_text("utf-8"))
    yield (
        "17 evaluations, as near to the flow as {:.0f} Euler steps",
        (plan["certificate"]["equivalent_steps"],),
    )


def _recent_models() -> Iterator[tuple[str, tuple[float, ...]]]:
    shares, skips, parts, kept = [], [], [], []
    for model in ("qwen21", "ltx2"):
        runs = [r for r in lines_of("fullsize.jsonl") if (r["model"], r["what"]) == (model, "run")]
        full = next(run for run in runs if run["method"] == "full")
        for run in (run for run in runs if run["method"] in ("instant", "tasu", "fitted")):
            speedup, ideal = speedups(run, full)
            skip = run["skip_us"]["median"]
            shares.append(100 * speedup / ideal)
            skips.append(skip)
            parts.append(100 * skip / 1e6 / full["evaluated_seconds"]["median"])
            kept.append(latents_above(run, full))
    assert max(kept) < 1.01
    yield (
        "reach at least {:.1f} % of the ideal there. A skipped step takes {:.0f} us to {:.0f} us, "
        "at most {:.3f} % of an evaluation, and a plan holds at most one latent",
        (min(shares), min(skips), max(skips), max(parts)),
    )


def _flow() -> Iterator[tuple[str, tuple[float, ...]]]:
    (pictures, steps), (clips, clip_steps) = nearness("flow"), nearness("wan-flow")
    for budget in (25, 17, 13, 10):
        yield (
            f"| {budget} | {{:.0f}} Euler steps | {{:.0f}} Euler steps |",
            (steps(budget), clip_steps(budget)),
        )
    for budget in (25, 17, 13, 10, 7):
        certified = (promised_steps(name, budget) for name in ("tiny-flux", "tiny-wan"))
        of_pictures, of_clips = certified
        yield (
            f"| {budget} |" + " {:.0f} steps |" * 4,
            (steps(budget), of_pictures, clip_steps(budget), of_clips),
        )
    today = nearness("flow", "flow-free-times")[1]
    yield "a plan that aims at it is as near as {:.0f} Euler steps", (today(17),)
    yield "fits choose free times now, and equal {:.0f} Euler steps with 17", (today(17),)
    assert [round(today(k)) for k in (10, 13)] == [round(steps(k)) for k in (10, 13)]
    todays_clips = distances("wan-flow-free-times")[0]["fitted-flow", 13]
    yield (
        "with 13 a fit of today equals {:.0f} Euler steps, {:.1f} dB farther from the flow than",
        (
            nearness("wan-flow", "wan-flow-free-times")[1](13),
            clips["fitted-flow", 13] - todays_clips,
        ),
    )
    yield "13 evaluations, as near to the flow as {:.0f} Euler steps", (steps(13),)
    yield (
        "as near to the flow as {:.0f} Euler steps, on clips of tiny-wan as {:.0f}",
        (steps(17), clip_steps(17)),
    )
    behind, behind_clips = (
        found["euler", 50] - found["fitted-flow", 13] for found in (pictures, clips)
    )
    yield (
        "a plan is still {:.1f} dB farther from the flow than 50 steps, and on clips {:.1f} dB",
        (behind, behind_clips),
    )
    full, ours = pictures["euler", 50], pictures["fitted-flow", 17]
    yield (
        "50 Euler steps have {:.1f} dB. With 17 evaluations a plan fitted to the flow is {:.1f} "
        "dB nearer than they are, and as near to the flow as {:.0f} Euler steps; with 25 as near "
        "as {:.0f}. With 13 it is {:.1f} dB farther than 50 steps, as near as {:.0f} of "
        "them",
        (full, ours - full, steps(17), steps(25), behind, steps(13)),
    )
    full, ours = clips["euler", 50], clips["fitted-flow", 17]
    solver = max(clips[name, 17] for name in ("ab2", "unipc", "dpm++2m", "heun"))
    yield (
        "50 Euler steps have {:.1f} dB here. With 17 evaluations a plan fitted to the flow is "
        "{:.1f} dB nearer than they are and {:.1f} dB nearer than AB2, the best solver, and as "
        "near to the flow as {:.0f} Euler steps; with 20 as near as {:.0f}, with 25 as near as "
        "{:.0f}. With 13 it is {:.1f} dB farther than 50 steps, as near as {:.0f} of them",
        (
            *(full, ours - full, ours - solver, clip_steps(17)),
            *(clip_steps(20), clip_steps(25), behind_clips, clip_steps(13)),
        ),
    )


def _asked() -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield what the answers to like_steps=50 gain over as many Euler steps, and min_psnr=35."""
    asked = list(lines_of("asked.jsonl"))
    records = {
        (record["model"], record["way"]): record
        for record in asked
        if record["question"] == "like_steps=50"
    }
    same = {record["way"]: record for record in asked if record["question"] == "min_psnr=35"}
    yield (
        "`min_psnr=35` became {:.0f} evaluations by a fit, with {:.1f} dB in the mean of these "
        "prompts, and {:.0f} by the shipped plans, with {:.1f} dB",
        tuple(
            value
            for way in ("fitted", "certificates")
            for value in (same[way]["evaluations"], same[way]["to_run"]["mean"])
        ),
    )
    gains = {
        key: record["to_flow"]["mean"] - record["euler_to_flow"]["mean"]
        for key, record in records.items()
    }
    flux, wan = records["tiny-flux", "fitted"], records["tiny-wan", "fitted"]
    assert min(gains["tiny-flux", way] for way in ("instant", "certificates")) > 0
    yield "The fit is {:.1f} dB below 50 Euler steps", (-gains["tiny-flux", "fitted"],)
    yield (
        "It took {:.0f}, since 15 promised only {:.0f} steps",
        (flux["evaluations"], flux["tried"]["15"]),
    )
    yield (
        "The shipped plan is {:.1f} dB above 50 Euler steps. The fit is {:.1f} dB short",
        (gains["tiny-wan", "certificates"], -gains["tiny-wan", "fitted"]),
    )
    yield "{:.0f} evaluations promised {:.0f} steps", (wan["evaluations"], wan["promised"])
    few = like_evaluations(50, clip=True)
    table = next(
        record["psnr"]["mean"]
        for record in packed("instant")
        if (record["model"], record["to"], record["method"]) == ("tiny-wan", "flow", "instant")
        and record["evaluations"] == few
    )
    yield "The table asks for {:.0f} evaluations, which have {:.1f} dB", (few, table)


def _clips_at_once() -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield what holds for instant plans on tiny-wan, and where they are behind."""
    psnr = measured_apart("tiny-wan")
    mean_of = {key: of["mean"] for key, of in psnr.items()}

    def falls(steps: int) -> dict[int, float]:
        instant = {k: mean_of["instant", steps, k] for k in range(4, steps)}
        return {k: instant[k] - instant[k + 1] for k in range(4, steps - 1)}

    def behind(steps: int, first: int) -> dict[int, float]:
        both = {
            k: mean_of["plain", steps, k] - mean_of["instant", steps, k]
            for k in range(first, steps)
            if ("plain", steps, k) in mean_of
        }
        return {k: lead for k, lead in both.items() if lead >= 0.05}

    for steps, where in ((28, []), (50, [19]), (20, [7, 12])):
        assert [k for k, lost in falls(steps).items() if lost > 0.5] == where
    assert (list(behind(28, 4)), list(behind(50, 7)), list(behind(20, 7))) == ([], [11], [8, 9])
    yield "the worst clip has {:.1f} dB", (psnr["instant", 28, 24]["least"],)
    yield (
        "20 evaluations have {:.1f} dB less than 19. Plain steps are ahead by {:.1f} dB with 11",
        (falls(50)[19], behind(50, 7)[11]),
    )
    yield (
        "8 evaluations have {:.1f} dB less than 7, and 13 have {:.1f} dB less than 12. Plain steps "
        "are ahead by {:.1f} dB with 8 evaluations and {:.1f} dB with 9",
        (falls(20)[7], falls(20)[12], behind(20, 7)[8], behind(20, 7)[9]),
    )
    flow: dict[str, dict[int, float]] = {}
    for record in packed("instant"):
        if (record["model"], record["to"]) == ("tiny-wan", "flow"):
            by_budget = flow.setdefault(record["method"], {})
            by_budget[record["evaluations"]] = record["psnr"]["mean"]
    ours, ab2 = flow["instant"], flow["ab2"]
    assert [k for k in ours if ours[k] < ab2[k]] == [2, *range(13, 33)]
    assert [k for k in ours if ours[k] < flow["unipc"][k]] == [2, 3]
    near = [max(k for k, of in flow["euler"].items() if of <= ours[budget]) for budget in (13, 17)]
    yield (
        "13 evaluations is as near as {:.0f} Euler steps and with 17 as near as {:.0f};",
        (near[0], near[1]),
    )
    yield "ahead, with 17 evaluations by {:.1f} dB", (ab2[17] - ours[17],)


def promised_steps(model: str, budget: int) -> float:
    """Return the Euler steps of the certificate of a shipped plan for the flow."""
    file = ROOT / f"models/src/tacache_models/{model}/plans/{budget}-flow.plan.json"
    steps: float = json.loads(file.read_text("utf-8"))["certificate"]["equivalent_steps"]
    return steps


def _clips() -> Iterator[tuple[str, tuple[float, ...]]]:
    main, instant, samples = psnr("wan-main"), psnr("wan-instant"), measured("wan-main")
    yield (
        "is ahead of it by {:.1f} ± {:.1f} dB",
        gain(samples["oss", 7], samples["fitted", 7]),
    )
    yield (
        "and ERTACache by {:.1f} ± {:.1f} dB",
        gain(samples["ertacache", 7], samples["fitted", 7]),
    )
    yield from _published("wan-main", ("wan-library", "wan", "wan-fast"), guided="wan")
    yield "`fitted` is {:.1f} dB closer", (main["fitted", 25] - main["tasu", 25],)
    yield (
        "13 evaluations has {:.1f} dB, and the paper's rule with 25 has {:.1f}. To be as close "
        "as that, `fitted` needs between 17 and 21 ({:.1f} and {:.1f} dB)",
        (
            *(main["fitted", 13], main["tasu", 25]),
            *(main["fitted", 17], psnr("wan-pareto")["fitted", 21]),
        ),
    )
    yield "26 evaluations here and give {:.1f} dB", (main["tasu:wan", None],)
    few, changes = (measured("wan-few", metric, 60) for metric in ("psnr", "motion-psnr"))
    rivals = {("oss", 7): "OSS", ("budcache", 5): "BudCache", ("magcache", 5): "MagCache"}
    rivals["diffusers-magcache", 5] = "MagCache of diffusers"
    for (rival, budget), said in rivals.items():
        leads = [gain(of["fitted", budget], of[rival, budget]) for of in (few, changes)]
        yield (
            f"| {budget} | {said} | {{:.1f}} ± {{:.1f}} | {{:.1f}} ± {{:.1f}} |",
            (*leads[0], *leads[1]),
        )
    rows = {
        "the paper's rule at its best ratio": "tasu",
        "reuse of the last velocity": "reuse",
        "fewer Euler steps": "fewer",
    }
    cells = " | {:.1f} | {:.1f} | {:.1f} |"
    yield f"| instant plan{cells}", tuple(main["instant", k] for k in (13, 17, 25))
    for said, name in rows.items():
        yield f"| {said}{cells}", tuple(main[name, k] for k in (13, 17, 25))
    yield (
        "of first order, {:.1f} dB to {:.1f} with 10 evaluations, and that of diffusers, {:.1f} "
        "dB to {:.1f} with 11",
        (
            *(main["taylorseer-1:wan", None], main["instant", 10]),
            *(main["diffusers-taylorseer:wan", None], instant["instant", 11]),
        ),
    )
    fits = [
        [
            value
            for (name, k), value in psnr("wan-calibration").items()
            if k == budget and "fitted" in name
        ]
        for budget in (13, 10, 7)
    ]
    yield "Fits differ by {:.1f} dB at most", (max(max(of) - min(of) for of in fits),)
    thresholds = psnr("wan-thresholds")
    fixed = sorted(value for (name, _), value in thresholds.items() if "/" in name)
    yield "here and give {:.1f} to {:.1f} dB", (fixed[0], fixed[-2])  # the last is full steps


def _published(
    study: str, seacache: tuple[str, ...], guided: str, *others: str
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield what rivals of 2026 spend and reach at their published settings."""
    spent: dict[str, list[float]] = {}
    for record in packed(study):
        evaluations = record.get("equivalent_evaluations") or len(record.get("evaluated", ()))
        spent.setdefault(record["method"], []).append(evaluations)
    names = [*(f"diffusers-seacache:{setting}" for setting in seacache), *others]
    said = {name: f"`{name}`" for name in names}
    said[f"cfg-late:{guided}"] = f"`cfg-late:{guided}`, in equivalent evaluations"
    for name, words in said.items():
        reached = mean(spent[name]), psnr(study)[name, None]
        yield f"| {words} | {{:.1f}} | {{:.1f}} |", reached


def _fits() -> Iterator[tuple[str, tuple[float, ...]]]:
    methods = ("reuse", "tasu", "damped", "fitted, fast", "fitted")
    best: dict[tuple[int, str], dict[str, Any]] = {}
    for record in sorted(lines_of("fitted.jsonl"), key=lambda record: float(record["psnr"])):
        best[record["evaluations"], record["method"]] = record
    for budget in (25, 17, 13, 10, 7, 5):
        here = [best[budget, name] for name in methods if (budget, name) in best]
        cells = ["-"] * (len(methods) - len(here)) + ["{:.2f} ± {:.2f}"] * len(here)
        values = (value for record in here for value in (record["psnr"], record["error"]))
        yield f"| {budget} | {' | '.join(cells)} |", tuple(values)
    fast = [record["spent"] for (_, name), record in best.items() if name == "fitted, fast"]
    behind = best[17, "fitted"]["psnr"] - best[17, "fitted, fast"]["psnr"]
    less = max(
        best[budget, "fitted"]["psnr"] - best[budget, "fitted, fast"]["psnr"]
        for budget in (25, 13, 10, 7, 5)
    )
    yield (
        "at most 3,000 evaluations in all, the fast one {:,.0f} to {:,.0f}. The fast one is "
        "{:.1f} dB behind at 17 and elsewhere at most {:.1f}",
        (min(fast), max(fast), behind, less),
    )
    main = psnr("main")
    lead = {k: main["fitted", k] - main["tasu", k] for k in (25, 17, 13)}
    yield (
        "at 17 and 25 it is {:.1f} and {:.1f} dB above it at the same number",
        (lead[17], lead[25]),
    )
    other = best[13, "fitted"]["psnr"] - best[13, "tasu"]["psnr"]
    yield (
        "{:.1f} to {:.1f} dB at 13, depending on the noise, and {:.1f} dB at 7 against {:.1f}",
        (other, lead[13], main["fitted", 7], main["tasu", 13]),
    )
    for record in lines_of("direct.jsonl"):
        yield (
            f"| {record['evaluations']} | {{:.6f}} | {{:.6f}} |",
            (record["lock-step"]["others"], record["direct"]["others"]),
        )


# Models of others: how many samples were run to the full run, and to the flow.
OTHERS = {
    "galaxies": (20, 24),
    "galaxies-32": (24, 24),
    "crystals": (8, 12),
}


def euler_run(study: str) -> list[float]:
    """Return how near the full run is to the flow, ordered by prompts."""
    by_prompt = {
        record["prompt"]: record["to_fine"]["metrics"]["psnr"]
        for record in packed(study)
        if record["method"] == "full"
    }
    return [by_prompt[prompt] for prompt in sorted(by_prompt)]


def _galaxies() -> Iterator[tuple[str, tuple[float, ...]]]:
    runs = {name: measured(name, prompts=count) for name, (count, _) in OTHERS.items()}
    flows = {
        name: measured(f"{name}-flow", prompts=count, reference="to_fine")
        for name, (_, count) in OTHERS.items()
    }
    euler = {name: euler_run(f"{name}-flow") for name in OTHERS}

    def best(run: dict[tuple[str, int | None], list[float]]) -> list[float]:
        return max((of for (name, k), of in run.items() if k == 13 and is_rival(name)), key=mean)

    cells = " | {:.1f} ± {:.1f} | {:.1f} ± {:.1f} | {:.1f} ± {:.1f} |"
    of_run, of_flow = "to the run, 13 evaluations", "to the flow, {} evaluations"
    leads = {
        f"{of_run} fitted to it less the paper's rule": [
            gain(run["fitted", 13], run["tasu", 13]) for run in runs.values()
        ],
        f"{of_run} fitted to it less the best rival": [
            gain(run["fitted", 13], best(run)) for run in runs.values()
        ],
        f"{of_flow.format(10)} fitted to it less 50 Euler steps": [
            gain(flow["fitted-flow", 10], euler[name]) for name, flow in flows.items()
        ],
    }
    for budget in (13, 17):
        leads[f"{of_flow.format(budget)} fitted to it less 100 Euler steps"] = [
            gain(flow["fitted-flow", budget], flow["euler:100", None]) for flow in flows.values()
        ]
    for said, gains in leads.items():
        yield f"| {said}{cells}", tuple(value for of in gains for value in of)
    (large, small) = (mean(runs[name]["fitted", 13]) for name in ("galaxies", "galaxies-32"))
    yield "{:.1f} dB with 13 evaluations on 64x64 and {:.1f} dB on 32x32", (large, small)
    steps = [
        (mean(euler[name]), *(mean(flows[name][f"euler:{n}", None]) for n in (100, 200)))
        for name in ("galaxies", "galaxies-32")
    ]
    yield (
        "On 64x64 50 Euler steps have {:.1f} dB, 100 have {:.1f} dB and 200 have {:.1f} dB. "
        "On 32x32 50 have {:.1f} dB, 100 have {:.1f} dB and 200 have {:.1f} dB",
        (*steps[0], *steps[1]),
    )
    hundred = mean(flows["crystals"]["euler:100", None])
    yield (
        "Here 50 Euler steps have {:.1f} dB and 100 have {:.1f} dB",
        (mean(euler["crystals"]), hundred),
    )


def is_rival(name: str) -> bool:
    """Return whether a method is neither ours, the paper's, nor plain steps."""
    return not OURS.match(name) and name != "fewer"


def _serving() -> Iterator[tuple[str, tuple[float, ...]]]:
    def rates(record: dict[str, Any]) -> tuple[float, float]:
        ours = record["batcher"]["requests_per_second"]
        ways = (record["one_after_another"], record["whole_requests"])
        alone, whole = (ours / way["requests_per_second"] for way in ways)
        return alone, whole

    busy, usual = (served("tiny-flux", times) for times in (24.0, 6.0))
    yield (
        "tiny-flux served {:.1f} times as many requests as one after another and {:.2f} times as "
        "many as whole batches of eight; half of its requests were done in {:.2f} s in place of "
        "{:.2f} s. Under six times the load it was {:.1f} and {:.2f} times",
        (
            *rates(busy),
            *(busy[way]["p50_seconds"] for way in ("batcher", "whole_requests")),
            *rates(usual),
        ),
    )
    yield (
        "are off by {:.0f} % under six times the load and by {:.0f} % under 24 times",
        tuple(100 * run["batcher"]["finish_error"]["after_last_arrival"] for run in (usual, busy)),
    )
    batches = json.loads((RESULTS / "serving-batches-h200.json").read_text("utf-8"))["batches"]
    flux = next(of["seconds"] for of in batches if of["model"] == "flux-1024")
    yield "takes {:.2f} s for one row and {:.2f} s for eight", (flux["1"], flux["8"])
    large = served("flux-1024", 6.0)
    yield (
        "{:.2f} requests a second against {:.2f}",
        (
            large["batcher"]["requests_per_second"],
            large["one_after_another"]["requests_per_second"],
        ),
    )
    simulated = [
        record["missed"]
        for record in lines_of("serving.jsonl")
        if record["policy"].endswith("by load") and (record["gpus"], record["load"]) == (8, 4)
        if record["arrivals"] == "poisson"
    ]
    yield "and by load at most {:.1f} % do", (100 * max(simulated),)


def _distilled() -> Iterator[tuple[str, tuple[float, ...]]]:
    turbo = ROOT / "models/src/tacache_models/tiny-flux-turbo"
    reached = {
        budget: json.loads((turbo / f"plans/{budget}.plan.json").read_text("utf-8"))["certificate"][
            "psnr"
        ]
        for budget in (4, 5, 6)
    }
    yield (
        "4 of 8 steps {:.1f} dB, 5 of 8 {:.1f} dB, 6 of 8 {:.1f} dB",
        tuple(reached[k] for k in (4, 5, 6)),
    )
    lora = json.loads((ROOT / "training/results/turbo.json").read_text("utf-8"))["held_out"][
        "lora-32"
    ]
    yield (
        "keep {:.1f} dB (5th percentile {:.1f}) to its own eight steps; six plain steps have "
        "{:.1f} ({:.1f})",
        tuple(lora[kind][of] for kind in ("reuse", "fewer") for of in ("mean", "p5")),
    )


def _quality() -> Iterator[tuple[str, tuple[float, ...]]]:
    entries = {(of["method"], of["evaluations"]): of for of in lines_of("quality.jsonl")}

    def fid(method: str, budget: int) -> float:
        value: float = entries[method, budget]["fid"]["value"]
        return value

    def lost(method: str, budget: int) -> float:
        return fid(method, budget) - fid("full", 50)

    def followed(method: str, budget: int, tag: str = "overall") -> float:
        share: float = entries[method, budget]["following"][tag]
        return 100 * share

    ours = [("full", 50), ("fitted", 13), ("fitted", 10), ("fitted", 7)]
    both = followed("fitted", 13), followed("full", 50)
    yield (
        "FID is that of 50 steps within {:.1f} for `fitted` and `instant`, and {:.1f} % of the "
        "prompts are followed, as with 50 steps ({:.1f} %). Plain steps lose {:.1f}; the paper's "
        "rule and the best rival lose {:.1f} at most",
        (
            max(abs(lost(of, 13)) for of in ("fitted", "instant")),
            *(*both, lost("fewer", 13), max(lost("tasu", 13), lost("hicache", 13))),
        ),
    )
    yield (
        "`fitted` loses {:.1f}, in both halves alike, and follows {:.1f} %. Plain steps lose "
        "{:.1f}, and follow {:.1f} %",
        (
            *(lost("fitted", 10), followed("fitted", 10)),
            *(lost("fewer", 10), followed("fewer", 10)),
        ),
    )
    yield (
        "`fitted` loses {:.1f}, and follows {:.1f} %. It is the best of all in FID. Plain steps "
        "lose {:.1f}, the best rival {:.1f} and the paper's rule {:.1f}, which follows {:.1f} %. "
        "Plain steps follow the most prompts there, {:.1f} %",
        (
            *(lost("fitted", 7), followed("fitted", 7), lost("fewer", 7), lost("magcache", 7)),
            *(lost("tasu", 7), followed("tasu", 7), followed("fewer", 7)),
        ),
    )
    yield (
        "`fitted` has {:.1f} % at 50 steps, {:.1f} %, {:.1f} % and {:.1f} % at 13, 10 and 7",
        tuple(followed(*of, tag="counting") for of in ours),
    )
    yield (
        "FID is {:.1f} with 13 evaluations, {:.1f} with 10 and {:.1f} with 7, of 50 steps {:.1f}",
        (fid("fitted", 13), fid("fitted", 10), fid("fitted", 7), fid("full", 50)),
    )


def _optimised() -> Iterator[tuple[str, tuple[float, ...]]]:
    gains = {
        (of["model"], of["evaluations"], name): of["after"]["psnr"][name]
        - of["before"]["psnr"][name]
        for of in lines_of("optimised.jsonl")
        for name in ("mean", "p5")
    }
    most = gains["tiny-flux", 13, "mean"]
    yield (
        "Adam gains {:.1f} dB on the closed form, and {:.1f} dB at the 5th percentile. With 7 it "
        "gains {:.1f} dB",
        (most, gains["tiny-flux", 13, "p5"], gains["tiny-flux", 7, "mean"]),
    )
    yield "gains {:.1f} dB](../reference/rivals.md#optimised-through-the-model)", (most,)
    farther = -gains["tiny-wan", 7, "mean"]
    assert abs(gains["tiny-wan", 13, "mean"]) < 0.05
    yield "test clips are no nearer with 13, and {:.1f} dB farther with 7", (farther,)


def _rivals() -> Iterator[tuple[str, tuple[float, ...]]]:
    main = psnr("main")
    names = {
        "TACache, fitted": "fitted",
        "MagCache": "magcache",
        "MagCache of diffusers": "diffusers-magcache",
        "TeaCache": "teacache",
        "cache-dit, DBCache": "cache-dit",
        "cache-dit, DBCache with TaylorSeer": "cache-dit-taylorseer",
    }
    cells = " | {:.1f} | {:.1f} | {:.1f} |"
    for said, name in names.items():
        yield f"| {said}{cells}", tuple(main[name, k] for k in (25, 13, 7))
    yield (
        f"| TACache, instant: nothing measured{cells}",
        tuple(main["instant", k] for k in (25, 13, 7)),
    )
    timed = {
        "TACache, fitted": "fitted",
        "MagCache of diffusers": "magcache",
        "cache-dit, DBCache": "dbcache",
        "cache-dit, DBCache with TaylorSeer": "dbcache-taylorseer",
    }
    for said, method in timed.items():
        yield (
            f"| {said} | {{:.2f}}x | {{:.2f}}x |",
            tuple(denoising_speedup(method, mode) for mode in ("eager", "compiled")),
        )


def pages() -> list[str]:
    """Return README and all pages whose figures are of measurements."""
    folders = (
        *("docs", "recipes", "models/src/tacache_models", "lab", "models", "comfyui"),
        "benchmarks/serving",
    )
    files = {page for folder in folders for page in (ROOT / folder).rglob("*.md")}
    names = sorted({"README.md", *(page.relative_to(ROOT).as_posix() for page in files)})
    return [name for name in names if not name.startswith(tuple(OTHER_PAGES))]


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return a text in which all that matches is as many spaces, so that places stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def figures(page: str, text: str) -> list[re.Match[str]]:
    """Return the figures of a page, without those that a command writes."""
    written = blanked(GENERATED, text)
    matches = list(FIGURE.finditer(written))
    if page in PAGES_OF_RESULTS:
        matches += DECIMAL.finditer(blanked(CODE, written))
    return matches


def pieces(text: str, sentence: Held) -> list[Piece]:
    """Return where a page has a sentence, whatever figures it has there."""
    parts = (
        re.escape(part).replace(r"\ ", r"\s+") for part in re.split(r"\{[^}]*\}", sentence.text)
    )
    matches = re.finditer(r"(-?\d[\d,]*(?:\.\d+)?)".join(parts), text)
    wanted = sentence.text.format(*sentence.values)
    return [Piece(match.start(), match.end(), wanted) for match in matches]


def check(texts: dict[str, str], sentences: list[Held]) -> list[str]:
    """Return what is wrong: a figure without a record, another than the record's, a rule unused.

    Args:
        texts: The pages by their paths.
        sentences: What the records say.

    Returns:
        A line for each fault.

    """
    faults, used = [], set()
    for page, text in texts.items():
        spans = []
        for sentence in sentences:
            for start, end, wanted in pieces(blanked(GENERATED, text), sentence):
                used.add(sentence.text)
                spans.append((start, end))
                if (said := " ".join(text[start:end].split())) != wanted:
                    faults.append(f"{page}: {said!r}, but the records say {wanted!r}")
        for pattern, _ in UNRECORDED:
            loose = re.sub(r" ", r"\\s+", pattern)
            for match in re.finditer(loose, text, flags=re.DOTALL):
                used.add(pattern)
                spans.append(match.span())
        faults += [
            f"{page}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]} follows from no record"
            for match in figures(page, text)
            if not any(start <= match.start() and match.end() <= end for start, end in spans)
        ]
    rules = [*(sentence.text for sentence in sentences), *(pattern for pattern, _ in UNRECORDED)]
    return faults + [f"no page says {rule!r}" for rule in rules if rule not in used]


def main() -> int:
    """Print the faults of all pages, and return 1 where there are some."""
    faults = check({page: (ROOT / page).read_text("utf-8") for page in pages()}, list(held()))
    print("\n".join(faults) or "every figure follows from the records, or has its reason")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
