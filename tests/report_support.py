"""Records to make reports from: two budgets, four methods, what can go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacache.storage.origin import Origin
from tacache_lab.bench.records import Fidelity, Machine, Record, TunedOn

PROMPTS = ("a red fox", "two | boats", "a <b>lamp</b>")
STEPS = 8
QUALITY = {"fitted": 34.0, "tasu": 31.0, "fewer": 28.0}
REASON = "teacache cannot run on 2 evaluations"


def record(
    method: str, evaluations: int | None, prompt: str = PROMPTS[0], **changes: Any
) -> Record:
    """A finished record of a method that evaluates as often as it is asked."""
    spent = changes.pop("spent", evaluations or 3)
    fields = {
        "method": method,
        "evaluations": evaluations,
        "prompt": prompt,
        "seed": 0,
        "status": "done",
        "evaluated": tuple(1 - n / spent for n in range(spent)),
        "noise_sha256": "ab",
        "seconds": spent / 4,
        "steps": STEPS,
        "fine": 32,
        "origin": Origin(kind="diffusers", model="some-flux", call={"height": 32}),
        "machine": Machine(device="cpu: x86_64", versions={"torch": "2.4"}),
    }
    return Record(**(fields | changes))


def fidelity(psnr: float, **metrics: float | str) -> Fidelity:
    return Fidelity(drift=10 ** (-psnr / 20), metrics={"psnr": psnr, **metrics})


def undone(method: str, evaluations: int, prompt: str, status: str, reason: str) -> Record:
    changes = {"status": status, "reason": reason, "evaluated": (), "seconds": None}
    return record(method, evaluations, prompt, **changes, noise_sha256=None)


def judged(method: str, evaluations: int | None, number: int, psnr: float, **more: Any) -> Record:
    """A record with fidelity; pictures of later prompts are a little nearer."""
    found = fidelity(psnr + number, ssim=0.9, lpips="not run: no weights")
    tuned_on = TunedOn(source="calibration", samples=4, prompts_sha256="cd", seconds=1.0)
    return record(
        method,
        evaluations,
        PROMPTS[number],
        to_full=found,
        to_fine=fidelity(psnr + number - 1),
        prepare_seconds=2.5,
        tuned_on=tuned_on,
        **more,
    )


def bench() -> list[Record]:
    """Every method on every prompt at two budgets; one unreachable, one that failed once."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        found.append(record("full", STEPS, prompt, to_fine=fidelity(40.0)))
        found.append(record("fine", 32, prompt, to_full=fidelity(40.0)))
        for budget in (4, 2):
            for method, psnr in QUALITY.items():
                found.append(judged(method, budget, number, psnr + budget + 0.1 * number))
            if budget == 2:
                found.append(undone("teacache", 2, prompt, "unreachable", REASON))
            else:
                found.append(judged("teacache", 4, number, 30.0))
            if number == 1:
                found.append(undone("ab2", budget, prompt, "failed", "RuntimeError: no memory"))
            else:
                found.append(judged("ab2", budget, number, 50.0))
        found.append(judged("magcache:flux", None, number, 29.0, spent=3))
    return found


def traced() -> list[Record]:
    """What the suites drift and indicators add: numbers a step."""
    full = {
        "times": tuple(1 - n / STEPS for n in range(STEPS + 1)),
        "magnitude": (*(0.1 * n for n in range(STEPS - 1)), None),
        "direction": (*(0.2 for _ in range(STEPS - 1)), None),
    }
    plan = {
        "state_drift": tuple(0.01 * n for n in range(STEPS + 1)),
        "velocity_drift": tuple(0.1 if n % 2 else 0.02 for n in range(STEPS)),
        "evaluated": tuple(float(n % 2 == 0) for n in range(STEPS)),
        "cos_theta": tuple(0.5 if n % 2 and n > 2 else None for n in range(STEPS)),
    }
    found = []
    for number, prompt in enumerate(PROMPTS):
        found.append(record("full", STEPS, prompt, traces=full))
        found.append(judged("tasu", 4, number, 30.0, traces=plan))
        found.append(judged("reuse", 4, number, 28.0, traces=plan | {"cos_theta": (None,) * STEPS}))
    return found


def save(records: list[Record], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(one.to_line() for one in records), encoding="utf-8")
    return path
