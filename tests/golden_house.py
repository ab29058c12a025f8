"""What runs come to: plans, records, pictures and states, each part in a golden file.

`python -m tests.golden_house` writes the files anew, or those of the parts that it is told. Do that
only where a change of the method means other numbers, and say why in the commit.
"""

import hashlib
import json
import math
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tests import bagel_stand_in, command_line
from tests.bagel_stand_in import CALL, SIZE, packed_arguments
from tests.support import mixture, noise_of
from torch import Tensor

import tacache
from tacache import bagel, diffusers, kdiffusion, models
from tacache.moving import replan

FOLDER = Path(__file__).parent / "golden"
FIT = ["fit", "tiny-flux", "--count", "4", "--steps", "16", "--evaluations", "5,8",
       "--max-evaluations", "400"]  # fmt: skip
BENCH = [
    "bench", "tiny-flux", "--count", "1", "--steps", "10", "--evaluations", "5", "--fine", "20",
    "--methods", "full,tasu,tasu-10,damped,fewer,magcache,taylorseer-1,ab2,diffusers-fbcache",
    "--calibration-count", "2", "--trace",
]  # fmt: skip
# of a plan, what a fit, a profile or the grid decides
PLAN = (
    "rule", "times", "anchors", "magnitude", "direction", "tau_k", "tau_d", "max_skip", "weights",
    "samples", "breaks", "certificate", "origin",
)  # fmt: skip
PROFILE = (
    "times", "samples", "magnitude", "magnitude_std", "direction", "direction_std", "breaks",
    "origin",
)  # fmt: skip
# of a record, what no clock and no machine decides
RECORD = (
    "method", "evaluations", "prompt", "seed", "status", "reason", "settings", "evaluated",
    "to_full", "to_fine", "prepare_evaluations", "equivalent_evaluations", "steps", "fine",
    "origin", "traces",
)  # fmt: skip
TOLERANCE = 1e-5  # relative; processors round differently


def house(folder: Path) -> dict[str, Any]:
    """The plans and records that the commands make in an empty folder."""
    for arguments in ([*FIT, "-o", folder / "plans"], [*BENCH, "-o", folder / "records.jsonl"]):
        done = command_line.run(*arguments)
        assert done.exit_code == 0, done.output
    files = (folder / "plans").glob("*.plan.json")
    plans = {path.name: _plan(path.read_text()) for path in files}
    lines = (folder / "records.jsonl").read_text().splitlines()
    records = {_name(json.loads(line)): _fields(line, RECORD) for line in lines}
    return {"plans": dict(sorted(plans.items())), "records": dict(sorted(records.items()))}


def pictures(folder: Path) -> dict[str, Any]:
    """Pictures of tiny-flux under plans, on their own grid and on another."""
    model, pipe = models.embedded("tiny-flux"), models.load("tiny-flux")
    profile = tacache.Profile.load(model.profile)
    pipe.set_progress_bar_config(disable=True)
    plans = {
        "instant": tacache.instant_plan(profile.times, 6),
        "tasu": tacache.make_plan(profile, evaluations=8, max_skip=8),
        "fitted": model.plan(5),
        "fitted to the flow": model.plan(5, "flow"),
    }

    def drawn(output: str = "latent", **changes: Any) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        call = model.call | changes | {"generator": generator, "output_type": output}
        return torch.as_tensor(pipe("two red discs", **call).images)

    full, result = drawn(num_inference_steps=8), {}
    for name, plan in plans.items():
        with diffusers.applied(pipe, plan):
            result[f"{name}: latents"] = _array(drawn())
            result[f"{name}: picture"] = _array(drawn("np"))
    drawn(num_inference_steps=16)
    times = pipe.scheduler.sigmas.tolist()
    for name, evaluations in (("instant", 2), ("tasu", 7)):  # planned again for this grid
        with diffusers.applied(pipe, replan(plans[name], times, evaluations)):
            result[f"{name}, 16 steps: latents"] = _array(drawn(num_inference_steps=16))
    with diffusers.applied(pipe, tacache.Plan.full(tacache.time_grid(8))):
        same = torch.equal(drawn(num_inference_steps=8), full)
    return {"full, 8 steps": _array(full), "every step draws the same bits": same, **result}


def stand_in(folder: Path) -> dict[str, Any]:
    """BAGEL's stand-in: a calibration, fits, and latents under their plans."""
    inferencer = bagel_stand_in.inferencer()
    prompts = ["a red fox", "two boats", "a lamp", "a kite"]
    profile = bagel.calibrate(inferencer, prompts, seeds=[0, 7], **CALL)
    fits = {
        target: bagel.fit_plan(inferencer, prompts, evaluations=6, target=target, search=False,
                               **CALL)
        for target in ("run", "flow")
    }  # fmt: skip
    plans = {
        "instant": tacache.instant_plan(profile.times, 5, breaks=profile.breaks),
        "tasu": tacache.make_plan(profile, evaluations=5),
        "fitted": fits["run"],
        "fitted to the flow": fits["flow"],
    }

    def latents() -> dict[str, Any]:
        torch.manual_seed(5)
        arguments = packed_arguments(inferencer, ["a boat"], [SIZE])
        call = {name: value for name, value in CALL.items() if name != "image_shapes"}
        (result,) = inferencer.model.generate_image(
            **arguments, **call, timestep_shift=3.0, cfg_interval=(0.4, 1.0)
        )
        return _array(result)

    runs = {"full": latents()}
    for name, plan in plans.items():
        with bagel.applied(inferencer, plan):
            runs[name] = latents()
    return {
        "profile": _fields(profile.to_json(), PROFILE),
        "fits": {target: _plan(plan.to_json()) for target, plan in fits.items()},
        "tasu": _plan(plans["tasu"].to_json()),
        "latents": runs,
    }


def samplers(folder: Path) -> dict[str, Any]:
    """The sampler for k-diffusion: states and callbacks under plans, a profile and a fit."""
    flow = mixture((4, 3, 3))

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        return x - sigma.reshape(-1, 1, 1, 1) * flow(x, float(sigma[0]))

    noise, sigmas = noise_of(8, (4, 3, 3), seed=5), torch.tensor(tacache.time_grid(20, 3.0))
    profile = kdiffusion.calibrate(model, noise, sigmas.double())
    fit = kdiffusion.fit_plan(model, noise, sigmas.double(), evaluations=6, max_evaluations=600)
    plans = {
        "instant": tacache.instant_plan(sigmas.tolist(), 6),
        "tasu": kdiffusion.plan_from_profile(profile, sigmas.tolist(), 6),
        "fitted": fit,
    }
    x, states = noise_of(2, (4, 3, 3), torch.float32), {}
    other = torch.tensor(tacache.time_grid(20, 2.0))
    for name, plan in plans.items():
        for where, grid in {"its grid": sigmas, "another": other, "a part": sigmas[6:]}.items():
            reports: list[Tensor] = []
            end = kdiffusion.sample_tacache(
                model, x * grid[0], grid, plan=plan,
                callback=lambda report, seen=reports: seen.append(report["denoised"]),
            )  # fmt: skip
            states[f"{name} on {where}"] = {
                "end": _array(end),
                "denoised": _array(torch.stack(reports)),
            }
    return {
        "profile": _fields(profile.to_json(), PROFILE),
        "fit": _plan(fit.to_json()),
        "tasu": _plan(plans["tasu"].to_json()),
        "states": states,
    }


def velocities(folder: Path) -> dict[str, Any]:
    """Plans of a mixture flow, by its velocity alone, and where they end."""
    flow, times = mixture(), tacache.time_grid(20, shift=2.0)
    profile, noise = tacache.calibrate(flow, noise_of(6), times), noise_of(8, seed=5)
    fits = {
        target: tacache.fit_plan(
            flow, noise, times, evaluations=6, target=target, max_evaluations=1500
        )
        for target in ("run", "flow")
    }
    plans = {
        "tasu": tacache.make_plan(profile, evaluations=7),
        "magnitude": tacache.make_plan(profile, speedup=2.5, rule="magnitude"),
        "direction": tacache.make_plan(profile, evaluations=9, rule="direction"),
        "reuse": tacache.make_plan(profile, evaluations=9, rule="reuse"),
        "tolerances": tacache.make_plan(profile, tau_k=0.3, tau_d=0.3),
        "instant": tacache.instant_plan(times, 6),
        "instant in parts": tacache.instant_plan(times, 6, breaks=(0.5,)),
    }
    x = noise_of(3, seed=9)
    ends = {name: tacache.sample(flow, x, plan) for name, plan in {**plans, **fits}.items()}
    return {
        "profile": _fields(profile.to_json(), PROFILE),
        "plans": {name: _plan(plan.to_json()) for name, plan in plans.items()},
        "fits": {target: _plan(plan.to_json()) for target, plan in fits.items()},
        "ends": {name: _array(end) for name, end in ends.items()},
    }


# the parts by the names of their files
PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "house": house,
    "pictures": pictures,
    "bagel": stand_in,
    "kdiffusion": samplers,
    "velocity": velocities,
}


def golden(part: str) -> Any:
    """What the file of a part says."""
    return json.loads((FOLDER / f"{part}.json").read_text())


def differences(found: Any, golden: Any, where: str = "") -> list[str]:
    """Where two values differ: numbers by more than the tolerance, all else at all.

    Bits are compared where both have those of the same machine.
    """
    if where.endswith("/bits"):
        return [
            f"{where}: other bits on this machine"
            for machine in found.keys() & golden.keys()
            if found[machine] != golden[machine]
        ]
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
    return (
        f"{record['method']} at {record.get('evaluations')}: {record['prompt']}, {record['seed']}"
    )


def _plan(text: str) -> dict[str, Any]:
    """The fields that a plan has, but for the day of its fit."""
    fields = {name: value for name, value in _fields(text, PLAN).items() if value is not None}
    if "certificate" in fields:
        for name in ("date", "worst_drift", "worst_psnr", "p5_psnr"):
            fields["certificate"].pop(name, None)
    return fields


def _array(x: Tensor) -> dict[str, Any]:
    """An array's bits, and for other machines a few of its numbers."""
    flat = x.detach().flatten()
    digest = hashlib.sha256(flat.contiguous().numpy().tobytes()).hexdigest()
    known = flat.double()
    some = known[:: -(-len(known) // 6)].tolist()
    return {
        "shape": list(x.shape),
        "dtype": str(x.dtype),
        "bits": {_machine(): digest},
        "mean": float(known.mean()),
        "std": float(known.std()),
        "some": some,
    }


def _machine() -> str:
    """A short name of all that decides how sums are rounded."""
    processor = platform.processor()
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        lines = facts.read_text().splitlines()
        processor = next((line for line in lines if line.startswith("model name")), processor)
    parts = (
        platform.machine(),
        processor,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        version("diffusers"),
        version("transformers"),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def main() -> None:
    """Write the golden files."""
    torch.set_num_threads(1)
    for part in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            content = PARTS[part](Path(folder))
        (FOLDER / f"{part}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
