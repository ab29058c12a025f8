"""Time and memory of the recipes, as computed by `python recipes/estimate.py`.

A forward pass is 2 operations a token and weight it passes, and 4 a pair of tokens and channel of
attention. Passes of FLUX.1-dev and Wan2.1-1.3B were timed on an H200 (random weights, bfloat16,
eager): 420 and 510 TFLOP/s. The others are computed with the mean of these. Other GPUs are taken to
be as much slower as their peak rate is lower. Memory is that of the weights alone.
"""

import sys
from dataclasses import dataclass, field

PEAK = {"H200, H100": 989, "A100": 312, "RTX 4090": 165}  # dense bfloat16, TFLOP/s
RATE = 465e12  # operations a second on an H200, between those of the two that were timed


@dataclass(frozen=True)
class Model:
    """What a recipe runs: the network's shape, its input, and a run's steps."""

    tokens: int
    weights_a_token: float  # weights of layers that every token passes
    layers: int
    width: int
    passes: int  # forward passes an evaluation: two where guidance has a negative prompt
    steps: int
    budgets: tuple[int, ...]  # evaluations
    calibration: int  # prompts
    parts: dict[str, float] = field(default_factory=dict)  # billions of weights
    timed: float | None = None  # seconds of a pass on an H200

    @property
    def operations(self) -> float:
        """Of one forward pass."""
        attention = 4 * self.tokens**2 * self.width * self.layers
        return 2 * self.weights_a_token * self.tokens + attention

    def seconds(self, gpu: str) -> float:
        """Of one evaluation."""
        a_pass = self.operations / RATE if self.timed is None else self.timed
        return a_pass * self.passes * PEAK["H200, H100"] / PEAK[gpu]


def transformer(layers: int, width: int, wide: int, *, cross: bool = False) -> float:
    """Weights a token passes: attention's four (and two to the text), and the two of the MLP."""
    return layers * ((6 if cross else 4) * width**2 + 2 * width * wide)


WAN_TEXT, WAN_VAE, T5, CLIP = 5.68, 0.13, 4.76, 0.12
MODELS = {
    "flux-dev": Model(
        4096 + 512, transformer(57, 3072, 12288), 57, 3072, 1, 50, (50, 25, 13, 10), 60,
        {"transformer": 11.9, "T5": T5, "CLIP": CLIP, "VAE": 0.08}, timed=0.177,
    ),
    "wan2.1-1.3b": Model(
        21 * 30 * 52, transformer(30, 1536, 8960, cross=True), 30, 1536, 2, 50,
        (50, 25, 23, 13), 30,
        {"transformer": 1.42, "UMT5": WAN_TEXT, "VAE": WAN_VAE}, timed=0.548,
    ),
    "bagel": Model(
        4096 + 2, 28 * (2 * 3584**2 + 2 * 3584 * 512 + 3 * 3584 * 18944), 28, 3584, 2, 49,
        (49, 25, 13, 10), 60, {"BAGEL-7B-MoT": 14.7, "VAE": 0.08},
    ),
    "hunyuanvideo": Model(
        33 * 34 * 60 + 256, transformer(60, 3072, 12288), 60, 3072, 1, 50, (50, 25, 17, 13), 30,
        {"transformer": 12.8, "Llama": 8.03, "CLIP": CLIP, "VAE": 0.25},
    ),
    "qwen-image": Model(
        83 * 83 + 64, transformer(60, 3072, 12288), 60, 3072, 2, 50, (50, 25, 13, 10), 60,
        {"transformer": 20.4, "Qwen2.5-VL": 8.29, "VAE": 0.13},
    ),
    "sd3.5": Model(
        4096 + 333, transformer(38, 2432, 9728), 38, 2432, 2, 28, (28, 14, 9, 7), 60,
        {"transformer": 8.06, "T5": T5, "CLIP": 0.82, "VAE": 0.08},
    ),
    "wan2.2": Model(
        21 * 30 * 52, transformer(40, 5120, 13824, cross=True), 40, 5120, 2, 40,
        (40, 20, 13, 10), 30,
        {"transformer": 14.3, "transformer_2": 14.3, "UMT5": WAN_TEXT, "VAE": WAN_VAE},
    ),
}  # fmt: skip


def duration(seconds: float) -> str:
    """Seconds, or minutes or hours where they are many."""
    for size, unit in ((3600, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / (size if unit == 'h' else 60):.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def rows(name: str) -> list[str]:
    """The tables of a recipe, as lines of Markdown."""
    model = MODELS[name]
    lines = [f"| | {' | '.join(PEAK)} |", "|---" * (1 + len(PEAK)) + "|"]
    work = {"one evaluation": 1.0}
    work |= {f"a run of {k} evaluations" + (" (full)" if k == model.steps else ""): float(k)
             for k in model.budgets}  # fmt: skip
    work[f"calibration, {model.calibration} prompts"] = model.calibration * model.steps
    for what, times in work.items():
        cells = [duration(model.seconds(gpu) * times) for gpu in PEAK]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    parts = [f"{part} {2 * billions:.1f}" for part, billions in model.parts.items()]
    whole, largest = 2 * sum(model.parts.values()), 2 * max(model.parts.values())
    weights = f"Weights in bfloat16: {', '.join(parts)}; {whole:.1f} GB together"
    return [*lines, "", f"{weights}, {largest:.1f} GB the largest."]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        print(f"{chosen}\n" + "\n".join(rows(chosen)) + "\n")
