"""How near tiny-flux comes to its flow: Euler steps, solvers, and plans fitted to run and flow.

    python -m benchmarks.flow encode -o flow-inputs.pt
    python -m benchmarks.flow run flow-inputs.pt -o benchmarks/results/flow.jsonl

All samples are one batch of a velocity function, so that a GPU takes minutes. The reference is
Runge-Kutta's method of fourth order with eight parts a step. Plans are fitted on calibration
prompts; figures are over test prompts. PSNR is that of decoded pictures, in dB; `equivalent` is the
number of Euler steps with the same mean distance of latents to the reference.
"""

import argparse
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache import (
    Plan,
    PlanError,
    calibrate,
    fit_plan,
    instant_plan,
    make_plan,
    models,
    sample,
)
from tacache.decomposition import relative_distance
from tacache.fidelity import psnr
from tacache.fitting.flow import equivalent_steps
from tacache.lab.methods import BASELINES, Problem, record
from tacache.prompts import read_prompts

STEPS, TEST, CALIBRATION, PARTS = 50, 24, 16, 8
BUDGETS = (5, 7, 10, 13, 17, 20, 25)
EULER = (10, 13, 17, 25, 50, 100, 200, 400)
SOLVERS = ("ab2", "dpm++2m", "unipc", "heun")
LOST = 25.0  # dB, below which a picture is another one
FEWEST = 6  # evaluations that the paper's longest interval of 12 allows on 50 steps
MOST = 6000  # evaluations of a fit: 16 samples and a finer run of each


@torch.no_grad()
def encode(out: Path) -> None:
    """Write what the model is called with: embeddings, noise, and the pipeline's own grids."""
    from tacache.diffusers import drive

    pipe, call = models.load("tiny-flux"), models.default_call("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    own = models.embedded("tiny-flux").prompts
    texts = read_prompts(own("test"))[:TEST] + read_prompts(own("calibration"))[:CALIBRATION]
    encoded = partial(
        pipe.encode_prompt, prompt_2=None, max_sequence_length=32, device=torch.device("cpu")
    )
    found = [encoded(prompt=text) for text in [*texts, call["negative_prompt"]]]
    noise, grids = [], {}
    for number, text in enumerate(texts):
        # as `tacache bench` does: test prompts have seed 0, calibration prompts others
        seed = 0 if number < TEST else 1_000_000 + number - TEST
        with drive(pipe, prompt=text, generator=torch.Generator().manual_seed(seed), **call) as run:
            noise.append(run.noise[0])
    for steps in sorted({*range(2, STEPS + 1), *EULER}):
        with drive(pipe, prompt=texts[0], **{**call, "num_inference_steps": steps}) as run:
            grids[steps] = list(run.times)
    _, image_ids = pipe.prepare_latents(
        1, pipe.transformer.config.in_channels // 4, 128, 128, torch.float32, "cpu", None, None
    )
    torch.save(
        {
            "embeddings": torch.cat([one[0] for one in found]),
            "pooled": torch.cat([one[1] for one in found]),
            "ids": found[0][2],
            "image_ids": image_ids,
            "noise": torch.stack(noise),
            "grids": grids,
            "guidance": call["true_cfg_scale"],
        },
        out,
    )


class Model:
    """The guided velocity of tiny-flux for samples by their numbers, and its decoder."""

    def __init__(self, inputs: dict[str, Any], device: str) -> None:
        from diffusers import AutoencoderKL, FluxTransformer2DModel

        folder = models.embedded("tiny-flux").folder
        self.net = FluxTransformer2DModel.from_pretrained(folder / "transformer").float().to(device)
        self.vae = AutoencoderKL.from_pretrained(folder / "vae").float().to(device)
        self.given = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        self.noise: Tensor = self.given["noise"]

    def __call__(self, x: Tensor, t: float, sample: Tensor) -> Tensor:
        """Both branches in one batch."""
        rows = [*sample.tolist(), *[-1] * len(x)]
        with_text, without = self.net(
            hidden_states=torch.cat([x, x]),
            timestep=x.new_full([2 * len(x)], t),
            encoder_hidden_states=self.given["embeddings"][rows],
            pooled_projections=self.given["pooled"][rows],
            txt_ids=self.given["ids"],
            img_ids=self.given["image_ids"],
            return_dict=False,
        )[0].chunk(2)
        return without + self.given["guidance"] * (with_text - without)

    def pictures(self, x: Tensor) -> Tensor:
        """Decoded samples in [0, 1], from packed latents."""
        side = round(x.shape[1] ** 0.5)
        grid = x.view(len(x), side, side, -1, 2, 2).permute(0, 3, 1, 4, 2, 5)
        latents = grid.reshape(len(x), -1, 2 * side, 2 * side)
        config = self.vae.config
        scaled = latents / config.scaling_factor + config.shift_factor
        return (self.vae.decode(scaled, return_dict=False)[0] / 2 + 0.5).clamp(0, 1)


def flow_ends(velocity: Any, x: Tensor, times: list[float], parts: int) -> Tensor:
    """Where Runge-Kutta's method of fourth order ends, with so many parts a step."""
    for start, end in pairwise(times):
        length = (start - end) / parts
        for n in range(parts):
            t = start - n * length
            last = max(t - length, 1e-6)
            k1 = velocity(x, t)
            k2 = velocity(x - length / 2 * k1, t - length / 2)
            k3 = velocity(x - length / 2 * k2, t - length / 2)
            x = x - length / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(x - length * k3, last))
    return x


@torch.no_grad()
def run(inputs: Path, out: Path, device: str) -> None:
    """One record a method and budget."""
    model = Model(torch.load(inputs, weights_only=True), device)
    test, known = torch.arange(TEST), torch.arange(TEST, TEST + CALIBRATION)
    grids, condition = model.given["grids"], {"sample": test}
    velocity, times = partial(model, sample=test), grids[STEPS]
    x, learned = model.noise[:TEST], model.noise[TEST:]
    truth = flow_ends(velocity, x, times, PARTS)
    follow = partial(sample, model, x, condition=condition)
    problem = Problem(model, x, times, condition, grids.__getitem__)
    euler = {n: follow(Plan.full(grids[n])) for n in EULER}
    distances = {n: float(relative_distance(end, truth).mean()) for n, end in euler.items()}
    drawn, of_run = model.pictures(truth), model.pictures(euler[STEPS])
    rows: list[dict[str, Any]] = []

    def add(method: str, evaluations: int, end: Tensor) -> None:
        made = model.pictures(end)
        to_flow, to_run = psnr(drawn, made), psnr(of_run, made).clamp_max(99)
        distance = float(relative_distance(end, truth).mean())
        rows.append(
            {
                "method": method,
                "evaluations": evaluations,
                "prompts": TEST,
                "flow_psnr": round(float(to_flow.mean()), 3),
                "flow_psnr_5th": round(float(torch.quantile(to_flow, 0.05)), 3),
                "flow_lost": int((to_flow < LOST).sum()),
                "flow_distance": round(distance, 6),
                "equivalent": round(equivalent_steps(distance, distances), 1),
                "run_psnr": round(float(to_run.mean()), 3),
                "run_psnr_5th": round(float(torch.quantile(to_run, 0.05)), 3),
                "run_lost": int((to_run < LOST).sum()),
            }
        )
        print(json.dumps(rows[-1]), flush=True)

    for n, end in euler.items():
        add("euler", n, end)
    few = {"sample": known[:1]}
    outline = record(model, learned[:1], times, condition=few, grid=grids.__getitem__)
    condition = {"sample": known}
    profile = calibrate(model, learned, times, condition=condition)
    fit = partial(fit_plan, model, learned, times, condition=condition, max_evaluations=MOST)
    for budget in BUDGETS:
        for name in SOLVERS:
            try:
                settings = BASELINES[name].fit(outline, budget)
            except PlanError as error:  # Heun's method spends two a step
                print(f"{name} at {budget}: {error}")
                continue
            add(name, budget, BASELINES[name].run(problem, settings).x)
        add("instant", budget, follow(instant_plan(times, budget)))
        if budget >= FEWEST:
            planned = make_plan(profile, evaluations=budget, ratio=10.0)
            add("tasu-10", budget, follow(planned))
        add("fitted", budget, follow(fit(evaluations=budget)))
        add("fitted-flow", budget, follow(fit(evaluations=budget, target="flow")))
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Encode the inputs, or run on them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("encode")
    two = commands.add_parser("run")
    two.add_argument("inputs", type=Path)
    two.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for command in (one, two):
        command.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "encode":
        encode(options.out)
    else:
        run(options.inputs, options.out, options.device)


if __name__ == "__main__":
    main()
