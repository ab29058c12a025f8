"""What the plans that ship promise, measured on prompts that no fit has seen.

    python -m benchmarks.certificates measure tiny-flux --count 12
    python -m benchmarks.certificates write tiny-flux

A fit holds out a quarter of its samples, which are few. `measure` runs further calibration prompts
in full and by every plan, and appends a record a plan and prompt; what is there is not run again.
`write` puts what they say into the certificates of the plans. The day of a fit and what it spent
stay as they were.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.plans import COUNT, OwnSeeds
from torch import Tensor

from tacache import models
from tacache.fidelity import capped, psnr
from tacache.fitting.flow import FINER, equivalent_steps, log_mean
from tacache.fitting.full_runs import walked_in_full
from tacache.fitting.integrators import AdamsBashforthIntegrator
from tacache.fitting.samples import FitSamples
from tacache.hosts.held_runs import HostSamples, hold
from tacache.plan import Certificate, Plan
from tacache.prompts import Sample, read_prompts
from tacache.stepper import average_of
from tacache.storage.signature import target_of
from tacache.tasu import relative_distance
from tacache.velocity import euler

RECORDS = Path(__file__).parent / "results" / "certificates.jsonl"
WORK = Path("build/certificates")
BLOCK = 4  # prompts whose calls are open at a time

Row = dict[str, Any]


class Ends(NamedTuple):
    """Where samples end by Euler's method, by its steps, and by what stands for the flow."""

    euler: Mapping[int, Tensor]
    flow: Tensor | None
    coarser: Tensor | None  # by every other velocity of that run


def shipped_plans(name: str) -> dict[str, Plan]:
    """Return the plans that ship with a model, by the names of their files."""
    folder = models.embedded(name).folder / "plans"
    return {file.name: Plan.load(file) for file in sorted(folder.glob("*.plan.json"))}


def weights_of(plan: Plan) -> str:
    """Return a hash of what a plan does, which plans of other grids may share."""
    nodes = [*(plan.times[n] for n in plan.anchors), plan.times[-1]]
    return hashlib.sha256(json.dumps([nodes, plan.weights]).encode()).hexdigest()[:12]


def read(file: Path) -> list[Row]:
    """Return the records that are there."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def measure(name: str, count: int, file: Path, device: str) -> None:
    """Append the records that are missing of so many prompts."""
    prompts, there = calibration(name), {key(row) for row in read(file)}
    host: OwnSeeds | None = None
    for first in range(COUNT, COUNT + count, BLOCK):
        samples = [Sample(text, 0) for text in prompts[first : min(first + BLOCK, COUNT + count)]]
        missing = [
            plan
            for plan in shipped_plans(name).values()
            if any(
                (name, sample.prompt, plan.full_steps, weights_of(plan)) not in there
                for sample in samples
            )
        ]
        if not missing:
            continue
        host = host or OwnSeeds(models.load(name).to(device), prompts)
        with models.steady_threads(host.pipe), torch.no_grad(), host.quiet():
            rows = list(block(name, host, samples, missing, WORK / f"{name}-{first}"))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows if key(row) not in there)
        there |= {key(row) for row in rows}
        print(f"{name}: {len(missing)} plans on {len(samples)} prompts more", flush=True)


def calibration(name: str) -> list[str]:
    """Return the calibration prompts of a model; the first of them are those of the fits."""
    return read_prompts(models.embedded(name).prompts("calibration"))


def key(row: Row) -> tuple[Any, ...]:
    """Return what one record is of."""
    return row["model"], row["prompt"], row.get("steps"), row.get("weights")


def block(
    name: str, host: OwnSeeds, samples: Sequence[Sample], plans: Sequence[Plan], work: Path
) -> Iterator[Row]:
    """Return the records of some prompts, whose calls are open together."""
    shipped = models.embedded(name)
    lengths = sorted({plan.full_steps for plan in shipped_plans(name).values()})
    work.parent.mkdir(parents=True, exist_ok=True)
    with hold(host, samples, dict(shipped.call), host.processes()) as runs:
        ends = ends_of(runs, lengths, "flow" in shipped.targets, work)
        seeds = [host.seeded(sample).seed for sample in samples]
        known: dict[str, tuple[Tensor, list[Tensor]]] = {}
        full = {steps: pictures(runs, ends.euler[steps]) for steps in lengths}
        for i, sample in enumerate(samples) if ends.flow is not None else ():
            yield {
                "model": name,
                "prompt": sample.prompt,
                "seed": seeds[i],
                "euler": {n: apart(x, ends.flow)[i] for n, x in sorted(ends.euler.items())},
                "flow_floor": apart(ends.coarser, ends.flow)[i],
            }
        for plan in plans:
            weights = weights_of(plan)
            if weights not in known:
                end = end_by(plan, runs)
                known[weights] = end, pictures(runs, end)
            end, drawn = known[weights]
            to_run = apart(end, ends.euler[plan.full_steps])
            to_flow = apart(end, ends.flow) if target_of(plan) == "flow" else None
            for i, sample in enumerate(samples):
                row: Row = {
                    "model": name,
                    "prompt": sample.prompt,
                    "seed": seeds[i],
                    "steps": plan.full_steps,
                    "evaluations": plan.evaluations,
                    "target": target_of(plan),
                    "weights": weights,
                    "psnr": capped(float(psnr(full[plan.full_steps][i], drawn[i]))),
                    "drift": to_run[i],
                }
                yield row if to_flow is None else row | {"flow_drift": to_flow[i]}


def ends_of(runs: HostSamples, lengths: Sequence[int], flow: bool, work: Path) -> Ends:
    """Return where the samples end by full runs, and by what stands for the flow."""
    own = len(runs.times) - 1
    counts = {*lengths, *((own // FINER, own, FINER * own) if flow else ())}
    by_euler = {}
    for steps in sorted(counts):
        with runs.on_steps(steps) as other:
            states, _ = walked_in_full(other, resume=work.with_suffix(f".{steps}"))
            by_euler[steps] = states[-1]
    if not flow:
        return Ends(by_euler, None, None)
    with runs.on_steps(FINER * own) as finer:
        states, velocities = walked_in_full(
            finer, AdamsBashforthIntegrator(finer.times), resume=work.with_suffix(".flow")
        )
        times = (*finer.times[:-1:2], finer.times[-1])
    x, again = states[0], AdamsBashforthIntegrator(times)
    for n, v in enumerate(velocities[::2]):
        x = again.move(x, v, n, n + 1)
    return Ends(by_euler, states[-1], x)


def end_by(plan: Plan, runs: FitSamples) -> Tensor:
    """Return where the samples end that follow a plan, by Euler's steps between its anchors."""
    nodes = (*(plan.times[n] for n in plan.anchors), plan.times[-1])
    assert plan.weights is not None
    with runs.on_levels(nodes) as own:
        x, velocities = own.noise, list[Tensor]()
        for i in range(plan.evaluations):
            velocities.append(own.evaluate(x, i, range(len(x))))
            average = average_of(velocities, plan.weights, i)
            x = euler(x, average, nodes[i], nodes[i + 1])
    return x


def pictures(runs: HostSamples, ends: Tensor) -> list[Tensor]:
    """Return what the host makes of the samples' last states, each with a dimension in front."""
    drawn = runs.pictures(ends, len(ends), in_calls_of_their_own=True)
    return [torch.from_numpy(drawn[i])[None] for i in range(len(ends))]


def apart(x: Tensor | None, reference: Tensor | None) -> list[float]:
    """Return the relative distance of each sample."""
    assert x is not None
    assert reference is not None
    distances: list[float] = relative_distance(x, reference).flatten().tolist()
    return distances


def certified(plan: Plan, rows: Sequence[Row], references: Sequence[Row]) -> Certificate:
    """Return a plan's certificate by its records and by those of Euler's runs on its prompts."""
    assert plan.certificate is not None
    values, drift = [row["psnr"] for row in rows], [row["drift"] for row in rows]
    changed: Row = {
        "held_out": len(rows),
        "drift": fmean(drift),
        "worst_drift": max(drift),
        "psnr": fmean(values),
        "p5_psnr": float(np.quantile(values, 0.05)),
        "worst_psnr": min(values),
    }
    if target_of(plan) == "flow":
        by_euler = {
            int(steps): log_mean(row["euler"][steps] for row in references)
            for steps in references[0]["euler"]
        }
        floor = fmean(row["flow_floor"] for row in references)
        ends = [row["flow_drift"] for row in rows]
        changed["flow_drift"] = max(fmean(ends), floor)
        changed["equivalent_steps"] = equivalent_steps(max(log_mean(ends), floor), by_euler)
    return plan.certificate.model_copy(update=changed)


def records_of(plan: Plan, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the records of a plan, and those of Euler's runs on its prompts."""
    own = [row for row in rows if key(row)[2:] == (plan.full_steps, weights_of(plan))]
    prompts = {row["prompt"] for row in own}
    return own, [row for row in rows if "euler" in row and row["prompt"] in prompts]


def write(name: str, file: Path) -> None:
    """Put what was measured into the certificates of the plans that ship with a model."""
    rows = [row for row in read(file) if row["model"] == name]
    folder = models.embedded(name).folder / "plans"
    for plan_file, plan in shipped_plans(name).items():
        own, references = records_of(plan, rows)
        if not own:
            print(f"{plan_file}: not measured")
            continue
        certificate = certified(plan, own, references)
        plan.model_copy(update={"certificate": certificate}).save(folder / plan_file)
        nearness = certificate.nearness(plan.evaluations)
        print(
            f"{name}, {plan_file}: {certificate.psnr:.2f} dB to the full run, 5th percentile "
            f"{certificate.p5_psnr:.2f}, on {len(own)} prompts{'; ' + nearness if nearness else ''}"
        )


def main() -> None:
    """Measure, or write what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "write"])
    parser.add_argument("models", nargs="+", choices=list(models.shipped()))
    parser.add_argument("--count", type=int, default=12, help="prompts behind those of the fits")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    for name in options.models:
        if options.what == "measure":
            measure(name, options.count, options.records, options.device)
        else:
            write(name, options.records)


if __name__ == "__main__":
    main()
