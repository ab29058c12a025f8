"""Distil tiny-flux to eight steps without guidance: all weights first, then LoRAs of some ranks.

    python -m training.turbo --minutes 1.2 --ranks 56 32

The teacher's guided 48-step runs pass through the states of the student's eight steps. At each of
them the student learns the velocity of the straight line to the next. The LoRAs begin at the best
approximation of their rank to the full change, and are trained the same way. Weights, a report and
a sheet land in the work folder; where the full student is there already, only LoRAs are trained.
`--embed` only prepares the captions, for a machine without the text encoder.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.config import SCHEDULER, SIZE, WORK
from training.flow import Clock, position_ids
from training.low_rank import Change, FullChange, LowRankChange
from training.sheets import save_sheet
from training.text import embed, load_text, package_folder, token_ids

STEPS, TEACHER_STEPS = 8, 48
GUIDANCE = 3.0
RATE, WARM_UP, EMA = 3e-4, 100, 0.999
RUNS_AT_ONCE = 1024
ANCHORS = (0, 1, 2, 3, 5, 7)  # of a run that reuses velocities: six evaluations of eight
CAPTIONS = Path(__file__).parent / "turbo.jsonl"
SHOWN = 8  # held-out prompts on the sheet

Velocity = Callable[[Tensor, float], Tensor]


class Text(NamedTuple):
    """Captions as the model reads them."""

    states: Tensor  # (captions, TOKENS, width)
    pooled: Tensor  # (captions, width)

    def of(self, rows: Any) -> "Text":
        """Return some of the captions."""
        return Text(self.states[rows], self.pooled[rows])


class Captions(NamedTuple):
    """The captions of the two sets, and the empty one, which guidance leads away from."""

    train: Text
    held_out: Text
    empty: Text


class Runs(NamedTuple):
    """What the student learns from: the teacher's states at the student's steps."""

    states: Tensor  # (STEPS + 1, runs, 64, 64)
    captions: Tensor  # (runs,): the row of each run's caption
    levels: list[float]


def main() -> None:
    """Prepare the captions, record the teacher, train the students and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.2, help="of training for each student")
    parser.add_argument("--ranks", type=int, nargs="*", default=[56, 32], help="of the LoRAs")
    parser.add_argument("--runs", type=int, default=21 * RUNS_AT_ONCE, help="of the teacher")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--base", type=Path, default=None, help="the folder of tiny-flux")
    parser.add_argument("--text", type=Path, default=None, help="MiniLM's folder")
    parser.add_argument("--embeddings", type=Path, default=WORK / "turbo" / "text.safetensors")
    parser.add_argument("--embed", action="store_true", help="prepare the captions, and stop")
    parser.add_argument("--out", type=Path, default=WORK / "turbo")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not options.embeddings.exists():
        embed_captions(options.embeddings, options.text)
    if not options.embed:
        distil(options, load_captions(options.embeddings, device), device)


def distil(options: argparse.Namespace, captions: Captions, device: str) -> None:
    """Train the students, then compare all of them with the teacher on captions not trained on."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass fails at these sizes
    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    base = options.base or base_folder()
    model = FluxTransformer2DModel.from_pretrained(base / "transformer").to(device)
    # Under autocast this layer's output has half precision, to which the model would round the
    # time; the student learns eight times only, and has to see them as they will be.
    model.x_embedder.register_forward_hook(lambda module, inputs, output: output.float())
    compiled = torch.compile(model, dynamic=False) if device == "cuda" else model
    clock = Clock(0.0)
    runs = teacher_runs(compiled, captions, options.runs)
    report = {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "runs": options.runs,
        "captions": len(captions.train.pooled),
        "batch": options.batch,
        "seconds": {"teacher": round(clock.read(), 1)},
        "students": read_report(options.out).get("students", {}),
    }
    first = copies(model)
    students: dict[str, dict[str, Tensor]] = {}
    for name, rank in {"full": None, **{f"lora-{rank}": rank for rank in options.ranks}}.items():
        file = options.out / f"{name}.safetensors"
        if rank is None and file.exists():
            model.load_state_dict(load_file(file, device))
        else:
            model.load_state_dict(first)
            change = LowRankChange(model, students["full"], rank) if rank else FullChange(model)
            curve = train(change, model, compiled, runs, captions.train, options)
            change.save(file)
            report["students"][name] = {"bytes": file.stat().st_size, "curve": curve}
            save_report(report, options.out)
        students[name] = copies(model)
        report["seconds"][name] = round(clock.read(), 1)
    students = {"teacher": first, **students}
    report["held_out"] = compare(model, students, base, captions, options.out / "sheet.png")
    save_report(report, options.out)
    print(json.dumps(report["held_out"], indent=1))


def base_folder() -> Path:
    """Return where tiny-flux lies when no folder is given."""
    from tacache.models import embedded

    return embedded("tiny-flux").folder


def copies(model: Any) -> dict[str, Tensor]:
    """Return the model's weights as they are now."""
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def read_report(folder: Path) -> dict[str, Any]:
    """Return the report of a run before, empty where there was none."""
    file = folder / "turbo.json"
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return report


def save_report(report: dict[str, Any], folder: Path) -> None:
    """Write the report as far as it goes."""
    (folder / "turbo.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def embed_captions(path: Path, folder: Path | None) -> None:
    """Write the states and pools of all captions: those of the sets in turn, then the empty one."""
    texts = [line["prompt"] for line in read_captions()] + [""]
    tokenizer, encoder = load_text(folder or package_folder())
    states, pooled = embed(encoder, token_ids(tokenizer, texts), batch=64)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"states": states, "pooled": pooled}, path)
    print(f"{len(texts)} captions -> {path}")


def read_captions(chosen: str | None = None) -> list[dict[str, str]]:
    """Return the captions of a set, or of all sets."""
    lines = [json.loads(line) for line in CAPTIONS.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if chosen in (None, line["set"])]


def load_captions(path: Path, device: str) -> Captions:
    """Return the captions' embeddings by set, in float32 on the device."""
    parts = load_file(path, device)
    text = Text(parts["states"].float(), parts["pooled"].float())
    sets = [line["set"] for line in read_captions()]
    rows = {name: [n for n, of in enumerate(sets) if of == name] for name in sets}
    return Captions(text.of(rows["train"]), text.of(rows["held-out"]), text.of([len(sets)]))


def noise_levels(steps: int) -> list[float]:
    """Return the levels at which the pipeline makes this number of steps, from 1 to 0."""
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    shift = calculate_shift(
        (SIZE // 16) ** 2,
        SCHEDULER["base_image_seq_len"],
        SCHEDULER["max_image_seq_len"],
        SCHEDULER["base_shift"],
        SCHEDULER["max_shift"],
    )
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift)
    return [float(level) for level in scheduler.sigmas]


def velocity(model: Any, x: Tensor, t: Tensor, text: Text) -> Tensor:
    """Return the model's velocity at one time for each state."""
    v: Tensor = model(
        hidden_states=x,
        timestep=t,
        encoder_hidden_states=text.states,
        pooled_projections=text.pooled,
        **position_ids(x.device.type),
        return_dict=False,
    )[0]
    return v.float()


def plain(model: Any, text: Text) -> Velocity:
    """Return the velocity of the captions."""
    return lambda x, t: velocity(model, x, torch.full((len(x),), t, device=x.device), text)


def guided(model: Any, text: Text, empty: Text) -> Velocity:
    """Return the velocity of the captions, guided away from the empty one."""
    count = len(text.pooled)
    both = Text(*(torch.cat([a, b.expand_as(a)]) for a, b in zip(text, empty, strict=True)))
    evaluate = plain(model, both)

    def guide(x: Tensor, t: float) -> Tensor:
        wanted, unguided = evaluate(torch.cat([x, x]), t).split(count)
        return unguided + GUIDANCE * (wanted - unguided)

    return guide


@torch.no_grad()
def euler(
    evaluate: Velocity, x: Tensor, levels: Sequence[float], anchors: Sequence[int] | None = None
) -> Iterator[Tensor]:
    """Yield the states of a run; where there are anchors, other steps reuse the last velocity."""
    yield x
    v = torch.zeros_like(x)
    for n, (t, t_next) in enumerate(pairwise(levels)):
        if anchors is None or n in anchors:
            v = evaluate(x, t)
        x = x - (t - t_next) * v
        yield x


def teacher_runs(model: Any, captions: Captions, count: int) -> Runs:
    """Record the teacher's guided runs of all captions in turn, each from a noise of its own."""
    device = captions.empty.pooled.device
    rows = torch.arange(count, device=device) % len(captions.train.pooled)
    levels, every = noise_levels(TEACHER_STEPS), TEACHER_STEPS // STEPS
    parts = []
    for some in rows.split(RUNS_AT_ONCE):
        noise = torch.randn(len(some), (SIZE // 16) ** 2, 64, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            evaluate = guided(model, captions.train.of(some), captions.empty)
            states = [x for n, x in enumerate(euler(evaluate, noise, levels)) if n % every == 0]
        parts.append(torch.stack(states))
    return Runs(torch.cat(parts, dim=1), rows, noise_levels(STEPS))


def train(
    change: Change, model: Any, compiled: Any, runs: Runs, text: Text, options: argparse.Namespace
) -> list[dict[str, float]]:
    """Train for the minutes given, leave the averaged weights in the model, return the curve."""
    optimizer = torch.optim.AdamW(
        change.trained, RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=text.pooled.is_cuda
    )
    average = [tensor.detach().clone() for tensor in change.trained]
    curve: list[dict[str, float]] = []
    recent: list[Tensor] = []
    line_loss(compiled, runs, text, options.batch).backward()  # compiles
    model.zero_grad(set_to_none=True)
    clock, step, seconds = Clock(0.0), 0, 0.0
    while seconds < options.minutes * 60:
        change.write()
        loss = line_loss(compiled, runs, text, options.batch)
        loss.backward()
        change.take_gradients()
        torch.nn.utils.clip_grad_norm_(change.trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, seconds / (options.minutes * 60))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(average, change.trained, 1 - min(EMA, (step + 1) / (step + 10)))
        step += 1
        recent.append(loss.detach())
        seconds = clock.read()
        if step % 100 == 0 or seconds >= options.minutes * 60:
            mean = torch.stack(recent).mean().item()
            curve.append({"step": step, "seconds": round(clock.read(), 1), "loss": mean})
            recent = []
    with torch.no_grad():
        for tensor, averaged in zip(change.trained, average, strict=True):
            tensor.copy_(averaged)
    change.write()
    return curve


def rate_at(step: int, done: float) -> float:
    """Return the learning rate: a short warm-up, then linear to zero."""
    return RATE * min(1.0, (step + 1) / WARM_UP) * max(0.0, 1 - done)


def line_loss(model: Any, runs: Runs, text: Text, batch: int) -> Tensor:
    """Return the squared error against the straight line to the run's next state."""
    device = runs.states.device
    chosen = torch.randint(len(runs.captions), (batch,), device=device)
    n = torch.randint(STEPS, (batch,), device=device)
    levels = torch.tensor(runs.levels, device=device)
    x, t, t_next = runs.states[n, chosen], levels[n], levels[n + 1]
    line = (x - runs.states[n + 1, chosen]) / (t - t_next)[:, None, None]
    with torch.autocast(device.type, torch.bfloat16):
        v = velocity(model, x, t, text.of(runs.captions[chosen]))
    return (v - line).square().mean()


@torch.no_grad()
def compare(
    model: Any, weights: dict[str, dict[str, Tensor]], base: Path, captions: Captions, sheet: Path
) -> dict[str, Any]:
    """Return the students' PSNR on held-out captions, and save a sheet of their pictures.

    `teacher` is to the teacher's own run, by a student's eight steps or by eight guided ones.
    `reuse` and `fewer` are to the student's eight steps: six evaluations of them, or six steps.
    """
    torch.set_float32_matmul_precision("highest")
    text, device = captions.held_out, captions.empty.pooled.device
    vae = AutoencoderKL.from_pretrained(base / "vae").to(device)
    noise = torch.stack(
        [
            torch.randn((SIZE // 16) ** 2, 64, generator=torch.Generator().manual_seed(seed))
            for seed in range(len(text.pooled))
        ]
    ).to(device)

    def drawn(evaluate: Velocity, steps: int, anchors: Sequence[int] | None = None) -> Tensor:
        *_, last = euler(evaluate, noise, noise_levels(steps), anchors)
        return decode(vae, last)

    pictures, results = {}, {}
    for name, student in weights.items():
        model.load_state_dict(student)
        if name == "teacher":
            evaluate = guided(model, text, captions.empty)
            pictures[name] = drawn(evaluate, TEACHER_STEPS)
            results["teacher, 8 guided steps"] = psnr(drawn(evaluate, STEPS), pictures[name])
            continue
        evaluate = plain(model, text)
        own = pictures[name] = drawn(evaluate, STEPS)
        results[name] = {
            "teacher": psnr(own, pictures["teacher"]),
            "reuse": psnr(drawn(evaluate, STEPS, ANCHORS), own),
            "fewer": psnr(drawn(evaluate, len(ANCHORS)), own),
        }
    rows = torch.cat([row[:SHOWN] for row in pictures.values()])
    shown = [line["prompt"] for line in read_captions("held-out")[:SHOWN]]
    labels = [f"{name}: {prompt}" for name in pictures for prompt in shown]
    save_sheet(rows * 2 - 1, sheet, columns=SHOWN, captions=labels)
    return results


def decode(vae: Any, latents: Tensor) -> Tensor:
    """Return pictures in [0, 1]."""
    unpacked = FluxPipeline._unpack_latents(latents, SIZE, SIZE, 8)
    unpacked = unpacked / vae.config.scaling_factor + vae.config.shift_factor
    pictures: Tensor = vae.decode(unpacked, return_dict=False)[0]
    return (pictures / 2 + 0.5).clamp(0, 1)


def psnr(pictures: Tensor, reference: Tensor) -> dict[str, float]:
    """Return the mean over pictures, and what one in twenty is below."""
    values = -10 * (pictures - reference).square().mean(dim=(1, 2, 3)).log10()
    low = torch.quantile(values, 0.05)
    return {"mean": round(values.mean().item(), 2), "p5": round(low.item(), 2)}


if __name__ == "__main__":
    main()
