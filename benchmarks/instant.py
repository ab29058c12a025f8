"""Instant plans on the embedded models: every budget at several step counts, and to the flow.

    python benchmarks/instant.py --embed inputs          prompts, noise and grids of the models
    python benchmarks/instant.py inputs results.jsonl    measure: minutes on a GPU
    python benchmarks/instant.py --table results.jsonl.gz    what the default budgets follow from

All plans of a step count walk its grid together, so that a step is one batch. Text and noise are
prepared first, for a machine without the text encoder. A record has the mean, the least and the
5th percentile over prompts: `snr` of latents and `psnr` of pictures, in dB, to the full run, or to
the flow (Runge-Kutta's fourth order).
"""

import argparse
import gzip
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacache.instant import (
    FLOW,
    LIKE_STEPS,
    Spread,
    flow_nodes,
    instant_plan,
    line_share,
    linear_rows,
    multistep_rows,
    spread_anchors,
)

MODELS = ("tiny-flux", "tiny-wan", "tiny-flux-turbo")
STEPS = (4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 28, 32, 40, 50, 64, 80, 100)
FINE = 160  # steps of Runge-Kutta
ROWS = 1536  # of a batch
PROMPTS = 24
GOAL = 35.0  # dB
# beside the results: how far Euler runs end from the flow
EULER = {"tiny-flux": "flow.jsonl.gz", "tiny-wan": "wan-flow.jsonl.gz"}
FLOW_FAMILIES: list[dict[str, float]] = [{"early": 0.85, "late": 0.7}]
RULES: list[dict[str, Any]] = [{}]  # others have a `family` and a share `linear` of the lines


class Model(NamedTuple):
    """A model as this study sees it: velocities of rows of the noise, and pictures of latents."""

    name: str
    velocity: Callable[[Tensor, float, Tensor], Tensor]  # of states, at a time, of these prompts
    decode: Callable[[Tensor], Tensor]
    noise: Tensor
    grids: dict[int, tuple[float, ...]]


class Walk(NamedTuple):
    """A plan of the study: its anchors, and the weights of v and of the velocity before."""

    fields: dict[str, Any]
    anchors: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]


def together(model: Model, times: Sequence[float], walks: Sequence[Walk]) -> Tensor:
    """Where every walk on one grid ends, shaped (walks, prompts, ...)."""
    x = model.noise.expand(len(walks), *model.noise.shape).clone()
    average, before = torch.zeros_like(x), torch.zeros_like(x)
    row_at = [dict(zip(walk.anchors, walk.rows, strict=True)) for walk in walks]
    prompts = torch.arange(len(model.noise), device=x.device)
    for n, (t, t_next) in enumerate(pairwise(times)):
        due = [i for i, rows in enumerate(row_at) if n in rows]
        if due:
            v = evaluated(model, x[due].flatten(0, 1), t, prompts.repeat(len(due))).view_as(x[due])
            pairs = x.new_tensor([(*row_at[i][n], 0.0)[:2] for i in due])
            a, b = (pairs[:, j].view(-1, *[1] * (v.ndim - 1)) for j in (0, 1))
            average[due], before[due] = a * v + b * before[due], v
        x = x - (t - t_next) * average
    return x


def evaluated(model: Model, x: Tensor, t: float, prompts: Tensor) -> Tensor:
    """Velocities of many rows, a batch at a time."""
    if not len(x):
        return x
    parts = zip(x.split(ROWS), prompts.split(ROWS), strict=True)
    return torch.cat([model.velocity(part, t, rows) for part, rows in parts])


def runge_kutta(model: Model, times: Sequence[float]) -> Tensor:
    """The flow from the noise, by the classical method of fourth order."""
    x, prompts = model.noise, torch.arange(len(model.noise), device=model.noise.device)
    for t, t_next in pairwise(times):
        h, middle = t - t_next, (t + t_next) / 2
        a = evaluated(model, x, t, prompts)
        b = evaluated(model, x - h / 2 * a, middle, prompts)
        c = evaluated(model, x - h / 2 * b, middle, prompts)
        d = evaluated(model, x - h * c, t_next, prompts)
        x = x - h / 6 * (a + 2 * b + 2 * c + d)
    return x


def solved(model: Model, times: Sequence[float], rows: Sequence[Sequence[float]]) -> Tensor:
    """Where a multistep rule ends that evaluates every step of a grid."""
    walk = Walk({}, tuple(range(len(times) - 1)), tuple(map(tuple, rows)))
    return together(model, times, [walk])[0]


def summary(values: Tensor) -> dict[str, float]:
    """The mean, the least and the 5th percentile, to two digits."""
    figures = {"mean": values.mean(), "least": values.min(), "p5": values.quantile(0.05)}
    return {name: round(min(float(value), 999.0), 2) for name, value in figures.items()}


def decibels(error: Tensor, of: Tensor) -> Tensor:
    """The ratio of squares in dB, a sample."""
    squares = (part.double().flatten(1).square().mean(1) for part in (of, error))
    top, bottom = squares
    return (10 * torch.log10(top / bottom.clamp_min(1e-30))).cpu()


def compared(model: Model, end: Tensor, reference: Tensor, pictures: Tensor | None) -> Any:
    """The figures of a result, by latents and, with the reference's pictures, by pictures."""
    figures = {"snr": summary(decibels(end - reference, reference))}
    if pictures is not None:
        drawn = model.decode(end)
        figures["psnr"] = summary(decibels(drawn - pictures, torch.ones_like(drawn)))
    return figures


def budgets(steps: int) -> list[int]:
    """Every budget of short runs, and of long ones more and more widely spaced."""
    if steps <= 50:
        return list(range(2, steps))
    return sorted({*range(2, 31), *range(30, steps, 3), steps - 1})


def walk_by(rule: dict[str, Any], times: Sequence[float], evaluations: int) -> Walk:
    """An instant plan, or one with another spread and another share of its straight lines."""
    fields = {**rule, "evaluations": evaluations}
    if not rule:
        plan = instant_plan(times, evaluations)
        return Walk(fields, plan.anchors, plan.weights or ())
    spread, linear = Spread(**rule["family"]), rule["linear"]
    anchors = spread_anchors(len(times) - 1, evaluations, spread=spread)
    lines = linear_rows(times, anchors)
    rows = [(1 - linear * row[1], linear * row[1]) if len(row) > 1 else row for row in lines]
    return Walk(fields, anchors, tuple(rows))


def to_the_run(
    model: Model, steps: int, rules: Sequence[dict[str, Any]], decode: bool
) -> Iterator[dict[str, Any]]:
    """Records of instant plans and of as many plain steps, to the full run."""
    times, facts = model.grids[steps], {"model": model.name, "to": "run", "steps": steps}
    full = solved(model, times, [(1.0,)] * steps)
    pictures = model.decode(full) if decode else None
    walks = [walk_by(rule, times, evaluations) for rule in rules for evaluations in budgets(steps)]
    for first in range(0, len(walks), 64):
        some = walks[first : first + 64]
        for walk, end in zip(some, together(model, times, some), strict=True):
            figures = compared(model, end, full, pictures)
            yield {
                **facts,
                "prompts": len(model.noise),
                "method": "instant",
                **walk.fields,
                "anchors": walk.anchors,
                **figures,
            }
    for evaluations in budgets(steps):
        if evaluations in model.grids:
            end = solved(model, model.grids[evaluations], [(1.0,)] * evaluations)
            figures = compared(model, end, full, pictures)
            plain = {"prompts": len(model.noise), "method": "plain", "evaluations": evaluations}
            yield {**facts, **plain, **figures}


def to_the_flow(
    model: Model,
    families: Sequence[dict[str, float]],
    decode: bool,
    *,
    solvers: bool = True,
    fine: int = FINE,
    counts: Sequence[int] = range(2, 33),
) -> Iterator[dict[str, Any]]:
    """Records of plans at free nodes to the flow and, with solvers, of Euler, AB2 and UniPC."""
    from tacache_lab.methods.solvers import unipc

    facts = {"model": model.name, "to": "flow", "prompts": len(model.noise), "fine": fine}
    flow = runge_kutta(model, model.grids[fine])
    pictures = model.decode(flow) if decode else None
    prompts = torch.arange(len(model.noise), device=model.noise.device)

    def entry(method: str, evaluations: int, end: Tensor, **more: Any) -> dict[str, Any]:
        figures = compared(model, end, flow, pictures)
        return {**facts, "method": method, "evaluations": evaluations, **more, **figures}

    for evaluations in counts:
        grid = model.grids[evaluations]
        for family in families:
            nodes = flow_nodes(model.grids[50], evaluations, spread=Spread(**family))
            rows = multistep_rows(nodes)
            yield entry("instant", evaluations, solved(model, nodes, rows), family=family)
        if not solvers:
            continue
        rows = multistep_rows(grid)
        yield entry("ab2", evaluations, solved(model, grid, rows))
        end = unipc(lambda x, t: evaluated(model, x, t, prompts), model.noise, grid)
        yield entry("unipc", evaluations, end)
    euler = {*range(4, 33), 40, 47, 50, 64, 80, 100, 128, 160} & model.grids.keys()
    for steps in sorted(euler) if solvers else ():
        yield entry("euler", steps, solved(model, model.grids[steps], [(1.0,)] * steps))


def load(name: str, inputs: Path, device: str, prompts: int) -> Model:
    """A model with its prepared inputs; what decodes and evaluates comes from diffusers."""
    kept = torch.load(inputs / f"{name}.pt", weights_only=True, map_location=device)
    rows = {key: value[:prompts] for key, value in kept["text"].items()}
    make = video_model if name == "tiny-wan" else picture_model
    velocity, decode = make(Path(kept["folder"]), rows, float(kept["guidance"]), device, kept)
    grids = {int(steps): tuple(times) for steps, times in kept["grids"].items()}
    return Model(name, velocity, decode, kept["noise"][:prompts], grids)


def picture_model(folder: Path, text: Any, scale: float, device: str, kept: Any) -> Any:
    """Velocities and pictures of tiny-flux; of its few-step student with the LoRA added."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel

    network = FluxTransformer2DModel.from_pretrained(folder / "transformer").to(device).float()
    vae = AutoencoderKL.from_pretrained(folder / "vae").to(device).float()
    for path, (b, a) in kept.get("lora", {}).items():
        network.get_submodule(path).weight.data += b.float() @ a.float()
    side = math.isqrt(kept["noise"].shape[1])
    ids = torch.zeros(side, side, 3, device=device)
    ids[..., 1] += torch.arange(side, device=device)[:, None]
    ids[..., 2] += torch.arange(side, device=device)[None]
    positions = {"img_ids": ids.reshape(-1, 3), "txt_ids": ids.new_zeros(text["on"].shape[1], 3)}

    def passed(x: Tensor, t: float, states: Tensor, pooled: Tensor) -> Tensor:
        time_ = x.new_full([len(x)], t)
        guidance = x.new_full([len(x)], 3.5) if network.config.guidance_embeds else None
        result: Tensor = network(
            hidden_states=x, timestep=time_, guidance=guidance, encoder_hidden_states=states,
            pooled_projections=pooled, return_dict=False, **positions,
        )[0]  # fmt: skip
        return result

    def velocity(x: Tensor, t: float, rows: Tensor) -> Tensor:
        on = passed(x, t, text["on"][rows], text["pooled_on"][rows])
        if scale == 1:
            return on
        off = passed(x, t, text["off"][rows], text["pooled_off"][rows])
        return off + scale * (on - off)

    def decode(x: Tensor) -> Tensor:
        count, _, width = x.shape
        packed = x.view(count, side, side, width // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
        latents = packed.reshape(count, width // 4, 2 * side, 2 * side)
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        return (vae.decode(latents, return_dict=False)[0] / 2 + 0.5).clamp(0, 1)

    return velocity, decode


def video_model(folder: Path, text: Any, scale: float, device: str, kept: Any) -> Any:
    """Velocities and clips of tiny-wan."""
    from diffusers import AutoencoderKLWan, WanTransformer3DModel

    network = WanTransformer3DModel.from_pretrained(folder / "transformer").to(device).float()
    vae = AutoencoderKLWan.from_pretrained(folder / "vae").to(device).float()
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean, std = (
        torch.tensor(values, device=device).view(shape)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )

    def passed(x: Tensor, t: float, states: Tensor) -> Tensor:
        time_ = x.new_full([len(x)], 1000 * t)
        result: Tensor = network(
            hidden_states=x, timestep=time_, encoder_hidden_states=states, return_dict=False
        )[0]
        return result

    def velocity(x: Tensor, t: float, rows: Tensor) -> Tensor:
        on, off = (passed(x, t, text[name][rows]) for name in ("on", "off"))
        return off + scale * (on - off)

    def decode(x: Tensor) -> Tensor:
        clip = vae.decode(x * std + mean, return_dict=False)[0]
        return (clip / 2 + 0.5).clamp(0, 1)

    return velocity, decode


@torch.no_grad()
def embed(folder: Path, names: Sequence[str] = MODELS) -> None:
    """Write what a machine without the text encoder needs of each model."""
    from tacache import models
    from tacache.diffusers import drive

    folder.mkdir(parents=True, exist_ok=True)
    for name in (name for name in names if name in models.shipped()):
        pipe, facts = models.load(name), models.embedded(name)
        texts, call = test_prompts(name), models.default_call(name)

        def opened(text: str, pipe: Any = pipe, **call: Any) -> Any:
            return drive(pipe, prompt=text, generator=torch.Generator().manual_seed(0), **call)

        with opened(texts[0], **call) as run:  # the noise depends on the seed alone
            noise = run.noise.clone()
        grids = {}
        for steps in sorted({*STEPS, *range(1, 51), FINE, 47, 128}):
            with opened(texts[0], **call | {"num_inference_steps": steps}) as run:
                grids[steps] = list(run.times)
        guidance = call.get("true_cfg_scale", call.get("guidance_scale"))
        kept = {
            "folder": str((getattr(facts, "base", None) or facts).folder.relative_to(Path.cwd())),
            "text": video_text(pipe, texts) if name == "tiny-wan" else picture_text(pipe, texts),
            "noise": noise.expand(len(texts), *noise.shape[1:]).clone(),
            "grids": grids,
            "guidance": guidance,
        }
        torch.save(kept, folder / f"{name}.pt")


def picture_text(pipe: Any, texts: list[str]) -> dict[str, Tensor]:
    """Both branches' embeddings of tiny-flux."""
    embeddings = {}
    for name, prompts in (("on", texts), ("off", [""] * len(texts))):
        states, pooled, _ = pipe.encode_prompt(prompts, None, max_sequence_length=32)
        embeddings |= {name: states, f"pooled_{name}": pooled}
    return embeddings


def video_text(pipe: Any, texts: list[str]) -> dict[str, Tensor]:
    """Both branches' embeddings of tiny-wan."""
    on, off = pipe.encode_prompt(texts, [""] * len(texts), True, max_sequence_length=32)
    return {"on": on, "off": off}


def measured(options: argparse.Namespace, device: str) -> Iterator[dict[str, Any]]:
    """All records: of each model to the flow, and to the run at each step count."""
    for name in options.models:
        if not (options.inputs / f"{name}.pt").is_file():
            continue
        model = load(name, options.inputs, device, options.prompts)
        if model.name != "tiny-flux-turbo":
            yield from to_the_flow(
                model,
                FLOW_FAMILIES,
                decode=True,
                solvers=not options.no_solvers,
                fine=options.fine,
                counts=options.counts,
            )
        for steps in options.steps:
            if steps in model.grids:
                yield from to_the_run(model, steps, RULES, decode=True)


def table(file: Path) -> Iterator[str]:
    """The fewest evaluations of today's instant plans from which on pictures have 35 dB, a row."""
    measured: dict[tuple[str, int], dict[int, float]] = {}
    for entry in entries(file):
        if entry["to"] != "run" or "anchors" not in entry or entry["prompts"] < PROMPTS:
            continue
        steps, evaluations = entry["steps"], entry["evaluations"]
        share = entry.get("linear", line_share(steps, evaluations))
        if tuple(entry["anchors"]) == spread_anchors(steps, evaluations) and share == line_share(
            steps, evaluations
        ):
            key = entry["model"], steps
            measured.setdefault(key, {})[evaluations] = entry["psnr"]["mean"]
    for (model, steps), psnr in sorted(measured.items()):
        enough = [k for k in psnr if all(psnr[m] >= GOAL for m in psnr if m >= k)]
        yield f"{model}, {steps} steps: {min(enough, default=steps)}"


def like_steps(file: Path, euler: Path, model: str) -> Iterator[tuple[int, int]]:
    """The fewest evaluations from which on plans for the flow are as near as so many Euler steps.

    `euler` has the distances of Euler runs to a much finer one, of which those on the same prompts
    from the same noise count. Between two counts of steps, decibels lie on a line over the
    logarithm of the count. Where no number that was measured is enough, the table ends.
    """
    spread = FLOW._asdict()
    plans = [
        entry
        for entry in entries(file)
        if (entry["model"], entry["to"], entry["method"]) == (model, "flow", "instant")
        and {"lead": 0.0, **entry["family"]} == spread
    ]
    psnr = {entry["evaluations"]: entry["psnr"]["mean"] for entry in plans}
    texts = test_prompts(model)[: min(entry.get("prompts", PROMPTS) for entry in plans)]
    pictures: dict[int, list[float]] = {}
    for entry in entries(euler):
        is_euler = entry["method"][:5] in ("full", "fewer", "euler")
        if entry["status"] == "done" and is_euler and entry["prompt"] in texts:
            decibel = entry["to_fine"]["metrics"]["psnr"]
            pictures.setdefault(len(entry["evaluated"]), []).append(decibel)
    counts = sorted(pictures)
    steps_of = np.log(counts), [fmean(pictures[count]) for count in counts]
    for steps in LIKE_STEPS:
        wanted = float(np.interp(math.log(steps), *steps_of))
        enough = [k for k in psnr if all(psnr[m] >= wanted for m in psnr if m >= k)]
        if enough:
            yield steps, min(enough)


def test_prompts(model: str) -> list[str]:
    """The prompts of this study."""
    from tacache import models
    from tacache.prompts import read_prompts

    return read_prompts(models.embedded(model).prompts("test"))[:PROMPTS]


def entries(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a packed file."""
    yield from map(json.loads, gzip.decompress(file.read_bytes()).decode().splitlines())


@torch.no_grad()
def main() -> None:
    """Prepare inputs, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--table", action="store_true", help="read results")
    parser.add_argument("--embed", action="store_true", help="prepare the inputs")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--steps", type=int, nargs="*", default=STEPS)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--counts", type=int, nargs="*", default=range(2, 33), help="to the flow")
    parser.add_argument("--fine", type=int, default=FINE, help="steps of Runge-Kutta")
    parser.add_argument("--no-solvers", action="store_true", help="plans alone to the flow")
    options = parser.parse_args()
    if options.embed:
        embed(options.inputs, options.models)
        return
    if options.table:
        print("\n".join(table(options.inputs)))
        for model, euler in EULER.items():
            for steps, few in like_steps(options.inputs, options.inputs.with_name(euler), model):
                print(f"{model}, as near to the flow as {steps} Euler steps: {few}")
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with options.output.open("a") as file:
        for entry in measured(options, device):
            file.write(json.dumps(entry) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
