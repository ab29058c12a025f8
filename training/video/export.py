"""Assemble the pipeline from the trained parts, in half precision, and draw the contact sheet.

python -m training.video.export --out training/work/video/tiny-wan --sheet training/work/video/sheet
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)

from training.video import text
from training.video.card import write_card
from training.video.config import FRAMES, GUIDANCE, SHIFT, SIZE, STEPS, TOKENS, UNIPC, WORK
from training.video.sheets import save_frames, save_moving, to_pixels

FOLDER = Path(__file__).parent
LOCAL = ("_name_or_path", "is_local", "local_files_only")  # say nothing elsewhere
TOKENIZER = "PreTrainedTokenizerFast"  # its name in every release of transformers


def main() -> None:
    """Save every part; look at the sheet before committing them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--out", type=Path, default=WORK / "tiny-wan")
    parser.add_argument("--prompts", type=Path, default=FOLDER / "sheet.txt")
    parser.add_argument("--sheet", type=Path, help="draw it: this name with .png and .gif")
    parser.add_argument("--guidance", type=float, nargs="+", default=[GUIDANCE])
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    pipe = build(options.work)
    save(pipe, options.out)
    write_card(pipe, options.work, options.out).chmod(0o644)
    if options.sheet:
        prompts = options.prompts.read_text(encoding="utf-8").splitlines()
        for n, guidance in enumerate(options.guidance):
            name = f"{options.sheet.name}-guidance-{guidance:g}" if n else options.sheet.name
            draw_sheet(pipe, prompts, options.sheet.parent / name, guidance, options.steps)


def build(work: Path) -> Any:
    """The pipeline of the trained parts, as half precision will have it."""
    from transformers import PreTrainedTokenizerFast

    return WanPipeline(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(work / "tokenizer"),
        text_encoder=text.load_encoder(work / "text_encoder").half(),
        vae=AutoencoderKLWan.from_pretrained(work / "vae").half(),
        transformer=WanTransformer3DModel.from_pretrained(work / "transformer").half(),
        scheduler=UniPCMultistepScheduler(**UNIPC),
    )


def save(pipe: Any, folder: Path) -> None:
    """Write a folder that any `WanPipeline.from_pretrained` loads, without local paths."""
    pipe.save_pretrained(folder)
    index = read(folder / "model_index.json")
    index["tokenizer"] = ["transformers", TOKENIZER]
    write(folder / "model_index.json", index)
    settings = read(folder / "tokenizer" / "tokenizer_config.json")
    write(folder / "tokenizer" / "tokenizer_config.json", settings | {"tokenizer_class": TOKENIZER})
    for config in folder.rglob("*config.json"):
        entries = read(config)
        for local in LOCAL:
            entries.pop(local, None)
        write(config, entries)
    for file in folder.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)


def draw_sheet(pipe: Any, prompts: list[str], path: Path, guidance: float, steps: int) -> None:
    """One clip a prompt with full Euler steps, seeds 0 and up; frames side by side, and moving."""
    pipe.to("cuda" if torch.cuda.is_available() else "cpu", torch.float32)
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=SHIFT)
    clips = pipe(
        prompts,
        negative_prompt="",
        height=SIZE,
        width=SIZE,
        num_frames=FRAMES,
        num_inference_steps=steps,
        guidance_scale=guidance,
        max_sequence_length=TOKENS,
        generator=[torch.Generator().manual_seed(i) for i in range(len(prompts))],
        output_type="pt",
    ).frames
    pixels = to_pixels(clips.transpose(1, 2) * 2 - 1)
    save_frames(pixels, prompts, path.with_name(path.name + ".png"))
    save_moving(pixels, prompts, path.with_name(path.name + ".gif"))


def read(path: Path) -> dict[str, Any]:
    """A JSON file."""
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def write(path: Path, entries: dict[str, Any]) -> None:
    """A JSON file with sorted entries."""
    path.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
