"""Assemble the pipeline from the trained parts, in half precision, and draw the sample sheet.

python -m training.export --out training/work/tiny-flux --sheet training/sheet.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)

from tacache_models import PARTS
from training.config import SCHEDULER, SIZE, TOKENS, WORK
from training.sheets import save_sheet
from training.text import load_text, package_folder


def main() -> None:
    """Save scheduler, autoencoder and transformer; look at the sheet before committing them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--out", type=Path, default=WORK / "tiny-flux")
    parser.add_argument("--text", type=Path, default=None, help="MiniLM's folder")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent / "sheet.txt")
    parser.add_argument("--sheet", type=Path, default=None)
    parser.add_argument("--guidance", type=float, default=3.0)
    options = parser.parse_args()
    pipe = build(options.work, options.text or package_folder())
    for part in PARTS:
        save_part(getattr(pipe, part), options.out / part)
    if options.sheet:
        prompts = options.prompts.read_text().splitlines()
        draw_sheet(pipe, prompts, options.guidance, options.sheet)


def save_part(part: Any, folder: Path) -> None:
    """Save a part without the path it was loaded from, which means nothing elsewhere."""
    part.save_pretrained(folder)
    config = folder / part.config_name
    entries = json.loads(config.read_text(encoding="utf-8"))
    entries.pop("_name_or_path", None)
    config.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def build(work: Path, text: Path) -> FluxPipeline:
    """The pipeline of the trained parts, as half precision will have it."""
    tokenizer, encoder = load_text(text)
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER),
        vae=AutoencoderKL.from_pretrained(work / "vae").half(),
        transformer=FluxTransformer2DModel.from_pretrained(work / "transformer").half(),
        text_encoder=encoder,
        tokenizer=tokenizer,
        text_encoder_2=encoder,
        tokenizer_2=tokenizer,
    )


def draw_sheet(pipe: Any, prompts: list[str], guidance: float, path: Path, steps: int = 50) -> None:
    """One picture a prompt, seed 0, with true guidance."""
    pipe.to("cuda" if torch.cuda.is_available() else "cpu", torch.float32)
    pictures = pipe(
        prompts,
        negative_prompt=[""] * len(prompts),
        true_cfg_scale=guidance,
        height=SIZE,
        width=SIZE,
        num_inference_steps=steps,
        max_sequence_length=TOKENS,
        generator=[torch.Generator().manual_seed(i) for i in range(len(prompts))],
        output_type="pt",
    ).images
    save_sheet(pictures * 2 - 1, path, columns=8, captions=prompts)


if __name__ == "__main__":
    main()
