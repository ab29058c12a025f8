"""Is anything lost that a viewer would miss: FID and prompt following of tiny-flux, by budget.

    python -m benchmarks.quality --prepare inputs           prompts, noise, scenes and Inception
    python -m benchmarks.quality inputs quality.jsonl       draw and judge: minutes on a GPU
    python -m benchmarks.quality --table quality.jsonl      what came out

2,000 pictures a method: 500 prompts with known answers (training/prompts.py), four seeds each. The
reference are 10,000 scenes composed as the training scenes were, of another seed. FID is also taken
to the pictures of full steps. `halves` are those of the even and of the odd pictures. A method that
has its record is not run again. The prepared inputs fit a machine without a network (about 60 MB):
Inception is kept in half precision, which changes FID by less than its second digit.

The best rival is the one at the velocity that is best at a budget in `main.jsonl.gz`, with the
settings that it was tuned to there.
"""

import argparse
import gzip
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from benchmarks.instant import Model, picture_model, picture_text
from torch import Tensor

from tacache import Profile, instant_plan, make_plan, models
from tacache.storage.files import Frozen
from tacache_lab.bench.plan_methods import sample_by_plan
from tacache_lab.following import Item, check, detect, load_detector, score
from tacache_lab.methods import BASELINES, SamplingProblem
from tacache_lab.methods.simple import GridSettings
from tacache_lab.picture_metrics.frechet import (
    FeatureStatistics,
    SetDistance,
    compare_sets,
    inception_features,
    load_inception,
)

NAME = "tiny-flux"
STEPS, BUDGETS = 50, (13, 10, 7)
PROMPTS_A_KIND, PROMPTS, SEEDS = 84, 500, 4
SCENES, SCENES_SEED, PROMPTS_SEED = 10_000, 977, 31
ROWS = 500  # pictures that are drawn together
MAIN = Path(__file__).parent / "results" / "main.jsonl.gz"
INCEPTION, EMOJI, INPUTS = "inception-half.pt", "emoji.npz", "quality.pt"

Sampler = Callable[[SamplingProblem], Tensor]


class Inputs(NamedTuple):
    """What is drawn and judged by: the model, its prompts with answers, and the network."""

    model: Model
    items: list[Item]
    network: Any
    detector: Any
    reference: FeatureStatistics


def problem_of(model: Model, rows: Tensor) -> SamplingProblem:
    """The pictures of these rows, as every method of the lab gets them."""
    grids = model.grids

    def velocity(x: Tensor, t: float, rows: Tensor) -> Tensor:
        return model.velocity(x, t, rows)

    return SamplingProblem(
        velocity, model.noise[rows], grids[STEPS], {"rows": rows}, lambda steps: grids[steps]
    )


def samplers(model: Model) -> Iterator[tuple[str, int, Sampler]]:
    """Every method with its evaluations: full steps, ours, the paper's rule and rivals."""
    times, facts = model.grids[STEPS], models.embedded(NAME)
    profile = Profile.load(facts.profile)

    def by_plan(plan: Any) -> Sampler:
        return lambda problem: sample_by_plan(problem, plan)

    def on_grid(steps: int) -> Sampler:
        settings = GridSettings(times=tuple(model.grids[steps]))
        return lambda problem: BASELINES["fewer"].run(problem, settings).x

    yield "full", STEPS, on_grid(STEPS)
    for budget in BUDGETS:
        yield "fitted", budget, by_plan(facts.plan(budget))
        yield "instant", budget, by_plan(instant_plan(times, budget))
        yield "tasu", budget, by_plan(make_plan(profile, evaluations=budget))
        yield "fewer", budget, on_grid(budget)
        name, settings = best_rival(budget)
        yield name, budget, lambda problem, n=name, s=settings: BASELINES[n].run(problem, s).x


def best_rival(budget: int, main: Path = MAIN) -> tuple[str, Frozen]:
    """The rival at the velocity with the highest mean PSNR at a budget, and its tuned settings."""
    psnr: dict[str, list[float]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for entry in map(json.loads, gzip.decompress(main.read_bytes()).decode().splitlines()):
        name = entry["method"]
        known = name in BASELINES and name not in ("full", "fewer")
        if known and entry.get("evaluations") == budget and entry["status"] == "done":
            psnr.setdefault(name, []).append(entry["to_full"]["metrics"]["psnr"])
            settings[name] = entry["settings"]
    best = max(psnr, key=lambda name: fmean(psnr[name]))
    return best, settings_of(best, settings[best])


def settings_of(name: str, fields: dict[str, Any]) -> Frozen:
    """Settings of a rival as records have them: the class of its module that has these fields."""
    module = vars(sys.modules[type(BASELINES[name]).__module__])
    kinds = [
        kind
        for kind in module.values()
        if isinstance(kind, type)
        and issubclass(kind, Frozen)
        and set(kind.model_fields) == {*fields}
    ]
    (kind,) = kinds
    return kind.model_validate_json(json.dumps(fields), strict=True)


@torch.no_grad()
def drawn(model: Model, sample: Sampler) -> Tensor:
    """The pictures of a method, in bytes."""
    pictures = []
    for rows in torch.arange(len(model.noise), device=model.noise.device).split(ROWS):
        ends = sample(problem_of(model, rows))
        pictures += [(model.decode(part) * 255).round().byte().cpu() for part in ends.split(100)]
    return torch.cat(pictures)


def judged(inputs: Inputs, pictures: Tensor, full: FeatureStatistics | None) -> dict[str, Any]:
    """FID to the reference and to full steps, and prompt following, each with its halves."""
    features = inception_features(inputs.network, pictures.float() / 255)
    seen = detect(inputs.detector, pictures.float() / 255)
    followed = [
        (item.tag, check(objects, item)) for objects, item in zip(seen, inputs.items, strict=True)
    ]
    halves = (followed[::2], followed[1::2])
    return {
        "fid": rounded(compare_sets(features, inputs.reference)),
        "fid_to_full": None if full is None else rounded(compare_sets(features, full)),
        "following": {name: round(share, 4) for name, share in score(followed).items()},
        "following_halves": [round(score(half)["overall"], 4) for half in halves],
    }


def rounded(distance: SetDistance) -> dict[str, Any]:
    """FID to four digits."""
    return {"value": round(distance.fid, 4), "halves": [round(x, 4) for x in distance.halves]}


def measured(inputs: Inputs, folder: Path, done: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """The records that are missing; the features of full steps are kept in the folder."""
    model = inputs.model
    kept = folder / "full-features.pt"
    facts = {
        "pictures": len(model.noise),
        "noise_sha256": hashlib.sha256(model.noise.cpu().numpy().tobytes()).hexdigest(),
        "prompts_sha256": hashlib.sha256(
            "\n".join(item.prompt for item in inputs.items).encode()
        ).hexdigest(),
    }
    for method, evaluations, sample in samplers(model):
        if (method, evaluations) in done:
            continue
        pictures, full = drawn(model, sample), None
        if method == "full":
            torch.save(inception_features(inputs.network, pictures.float() / 255), kept)
        else:
            full = FeatureStatistics.of(torch.load(kept, weights_only=True))
        figures = judged(inputs, pictures, full)
        yield {"method": method, "evaluations": evaluations, **figures, **facts}


@torch.no_grad()
def load(folder: Path, device: str) -> Inputs:
    """The model on its device, and the statistics of the composed scenes."""
    from training.corpus import load_bank
    from training.detector import draw
    from training.emoji import load_vocabulary
    from training.render import pack
    from training.scenes import sample_scenes

    kept = torch.load(folder / INPUTS, weights_only=True, map_location=device)
    items = [Item.model_validate_json(line) for line in kept["items"]] * SEEDS
    count = len(items)
    text = {
        name: rows.float().repeat(SEEDS, *[1] * (rows.ndim - 1))
        for name, rows in kept["on"].items()
    }
    text |= {
        name: rows.float().expand(count, *rows.shape[1:]) for name, rows in kept["off"].items()
    }
    noise = noise_of(count, tuple(kept["shape"])).to(device)
    place = models.embedded(NAME).folder
    velocity, decode = picture_model(place, text, float(kept["guidance"]), device, {"noise": noise})
    grids = {int(steps): tuple(times) for steps, times in kept["grids"].items()}
    network = load_inception(device, (folder / INCEPTION).read_bytes())
    bank = load_bank(folder / EMOJI, device)
    scenes = sample_scenes(SCENES, SCENES_SEED, load_vocabulary())
    composed = draw(pack(scenes, bank), bank).float() / 255
    return Inputs(
        Model(NAME, velocity, decode, noise, grids),
        items,
        network,
        load_detector().to(device),
        FeatureStatistics.of(inception_features(network, composed)),
    )


def noise_of(count: int, shape: tuple[int, ...]) -> Tensor:
    """The noise of every picture: its number is its seed."""
    rows = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(count)]
    return torch.stack(rows)


@torch.no_grad()
def prepare(folder: Path, emoji: Path) -> None:
    """Write what a machine without a network and without the text encoder needs."""
    from training.emoji import load_vocabulary
    from training.prompts import make_prompts

    from tacache.diffusers import drive

    folder.mkdir(parents=True, exist_ok=True)
    prompts = make_prompts(load_vocabulary(), PROMPTS_A_KIND, PROMPTS_SEED)[:PROMPTS]
    pipe, call = models.load(NAME), models.default_call(NAME)
    grids = {}
    for steps in (STEPS, *BUDGETS):
        generator = torch.Generator().manual_seed(0)
        options = call | {"num_inference_steps": steps}
        with drive(pipe, prompt=prompts[0]["prompt"], generator=generator, **options) as run:
            grids[steps], shape = list(run.times), list(run.noise.shape[1:])
    on = picture_text(pipe, [entry["prompt"] for entry in prompts])
    off = picture_text(pipe, [""])
    kept = {
        "items": [json.dumps(entry) for entry in prompts],
        "on": {name: on[name].half() for name in ("on", "pooled_on")},
        "off": {name: off[name].half() for name in ("off", "pooled_off")},
        "grids": grids,
        "shape": shape,
        "guidance": call["true_cfg_scale"],
    }
    torch.save(kept, folder / INPUTS)
    (folder / EMOJI).write_bytes(emoji.read_bytes())
    torch.jit.save(load_inception().half(), str(folder / INCEPTION))


def table(records: Sequence[dict[str, Any]]) -> str:
    """FID and following of every method, with the distance of the halves from their mean."""
    rows = [
        "| method | evaluations | FID | more than full steps | FID to full steps | "
        "prompts followed |",
        "|---|---|---|---|---|---|",
    ]
    full = next((entry["fid"] for entry in records if entry["method"] == "full"), None)
    for entry in records:
        more = above(entry["fid"], full) if full and entry["method"] != "full" else None
        cells = [entry["method"], entry["evaluations"]]
        for fid in (entry["fid"], more, entry["fid_to_full"]):
            a, b = fid["halves"] if fid else (0, 0)
            cells.append(f"{fid['value']:.2f} ± {abs(a - b) / 2:.2f}" if fid else "-")
        a, b = entry["following_halves"]
        cells.append(f"{100 * entry['following']['overall']:.1f} ± {50 * abs(a - b):.1f} %")
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def above(fid: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """How much larger FID is than that of full steps: both have the same prompts and noise."""
    halves = [a - b for a, b in zip(fid["halves"], full["halves"], strict=True)]
    return {"value": fid["value"] - full["value"], "halves": halves}


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file; none where it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    """Prepare, measure or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--prepare", action="store_true", help="write the inputs")
    parser.add_argument("--table", action="store_true", help="show records")
    parser.add_argument("--emoji", type=Path, default=Path("training/work/emoji.npz"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
    if options.prepare:
        return prepare(options.inputs, options.emoji)
    if options.table:
        return print(table(read(options.inputs)))
    done = {(entry["method"], entry["evaluations"]) for entry in read(options.output)}
    inputs = load(options.inputs, "cuda" if torch.cuda.is_available() else "cpu")
    with options.output.open("a", encoding="utf-8") as file:
        for entry in measured(inputs, options.inputs, done):
            file.write(json.dumps(entry) + "\n")
            file.flush()
            print(table([entry]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
