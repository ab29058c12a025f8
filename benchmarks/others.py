"""Galaxies of a third party's model: the flow, ten evaluations, and what is lost of it.

python -m benchmarks.others benchmarks/results/galaxies-flow.jsonl.gz docs/figures/galaxies.webp

Rows: the flow (300 steps of second order), a plan fitted to the flow, and plain steps, each with as
many evaluations, then the differences of both from the flow, eight times as bright. Plans and grids
are those of the records.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tacache.plan import Plan
from tacache.prompts import Sample
from tacache_lab.bench.flow_runs import FLOW_STEPS
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.plan_methods import sample_by_plan
from tacache_lab.bench.records import Record, read_records
from tacache_lab.methods import BASELINES, SamplingProblem
from tacache_lab.methods.simple import GridSettings
from tacache_lab.methods.solvers import adams_bashforth_2
from tacache_lab.third_party import MODELS, VelocityHost

EVALUATIONS, GALAXIES, SCALE, BRIGHTER = 10, 8, 2, 8.0


def ends(record: Record, velocity: Any) -> Tensor:
    """Where the method of a record ends, with the settings that it has there."""
    problem = SamplingProblem(velocity, velocity.run.noise, velocity.times)
    assert record.settings is not None
    if record.method == "fewer":
        settings = GridSettings.model_validate(record.settings)
        return BASELINES["fewer"].run(problem, settings).x
    fields = {name: record.settings.get(name) for name in ("rule", "anchors", "weights", "grid")}
    times = velocity.times
    if fields["grid"] is not None:  # the plan is at levels of its own, within those of the run
        times = (times[0], *record.evaluated[1:], times[-1])
    return sample_by_plan(problem, Plan.model_validate({"times": times, **fields}))


@torch.no_grad()
def sheet(records: list[Record], model: str) -> np.ndarray:
    """All rows as one picture of bytes."""
    chosen = {
        (record.method, record.prompt): record
        for record in records
        if record.evaluations == EVALUATIONS and record.method in ("fitted-flow", "fewer")
    }
    prompts = sorted({prompt for _, prompt in chosen}, key=lambda name: int(name.split()[-1]))
    call = {"steps": records[0].steps}
    columns = []
    for prompt in prompts[:GALAXIES]:
        calls = Calls(VelocityHost(MODELS[model]), call, Sample(prompt, 0))
        with calls.open(Sample(prompt, 0)) as velocity:
            fine = calls.grid(FLOW_STEPS)
            flow = velocity.finish(adams_bashforth_2(velocity, velocity.run.noise, fine))
            ours, plain = (
                velocity.finish(ends(chosen[method, prompt], velocity))
                for method in ("fitted-flow", "fewer")
            )
        gaps = [np.clip(BRIGHTER * np.abs(picture - flow), 0, 1) for picture in (ours, plain)]
        columns.append(np.concatenate([flow, ours, plain, *gaps]))
    return (np.concatenate(columns, axis=1) * 255).round().astype(np.uint8)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    records = list(read_records(options.records))
    pixels = sheet(records, records[0].origin.model or "")
    height, width, _ = pixels.shape
    picture = Image.fromarray(pixels).resize((SCALE * width, SCALE * height), Image.NEAREST)
    picture.convert("L").save(options.picture, quality=80)


if __name__ == "__main__":
    main()
