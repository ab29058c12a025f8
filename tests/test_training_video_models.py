"""Text, autoencoder, flow and export of the video model, at sizes a test can afford."""

import json
import os
import random
import re
import stat
import subprocess
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from video_support import THINGS, animation, clips_of, pictures, run_main

from tacache import models
from tacache.demo import VIDEO_CALIBRATION, VIDEO_PROMPTS
from tacache.prompts import read_prompts
from training.emoji import load_vocabulary
from training.video import (
    autoencoder,
    config,
    corpus,
    emoji,
    export,
    flow,
    prompts,
    text,
    whole,
)
from training.video.captions import caption
from training.video.config import FRAMES, SIZE, TOKENS

FOLDER = Path(prompts.__file__).parent

# --- text


@pytest.fixture(scope="module")
def tokenizer():
    rng = random.Random(0)
    return text.make_tokenizer([caption(c, rng, THINGS) for c in clips_of(None, 600)], pieces=300)


def test_pieces_cover_any_word_and_end_with_the_mark(tokenizer):
    ids = text.token_ids(tokenizer, ["A disc moves left.", "zeppelin 42", ""])
    assert ids.shape == (3, TOKENS)
    assert tokenizer.unk_token_id not in ids
    assert ids[2].tolist() == [tokenizer.eos_token_id] + [tokenizer.pad_token_id] * (TOKENS - 1)
    same = text.token_ids(tokenizer, ["a disc moves left."])
    assert torch.equal(ids[:1], same)
    long = text.token_ids(tokenizer, ["disc " * 60])
    assert long[0, -1] == tokenizer.eos_token_id


def test_states_are_those_of_the_pipeline(tokenizer):
    from diffusers import WanPipeline

    torch.manual_seed(0)
    encoder = text.make_encoder(tokenizer, **SMALL_TEXT).eval()
    pipe = WanPipeline(tokenizer, encoder, vae=None, scheduler=None, transformer=None)
    prompt = "a disc moves left"
    expected = pipe._get_t5_prompt_embeds(prompt, max_sequence_length=TOKENS)
    states = text.encode(encoder, text.token_ids(tokenizer, [prompt]))
    torch.testing.assert_close(states, expected)
    assert (states[0, 12:] == 0).all()


# --- training

SMALL_AUTOENCODER = {"base_dim": 4, "decoder_base_dim": 4, "dim_mult": [1, 1, 1]}
SMALL_TEXT = {"d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1}
SMALL_TRANSFORMER = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "ffn_dim": 32,
    "num_layers": 1,
}


@pytest.fixture(scope="module")
def small():
    """Every model far smaller than the real one."""
    with pytest.MonkeyPatch.context() as patch:
        for settings, smaller in (
            (config.AUTOENCODER, SMALL_AUTOENCODER),
            (config.TEXT_ENCODER, SMALL_TEXT),
            (config.TRANSFORMER, SMALL_TRANSFORMER),
        ):
            for name, value in smaller.items():
                patch.setitem(settings, name, value)
        yield


def small_vae(seed: int = 0):
    from diffusers import AutoencoderKLWan

    torch.manual_seed(seed)
    return autoencoder.channels_last(
        AutoencoderKLWan(**config.AUTOENCODER | SMALL_AUTOENCODER | {"base_dim": 8})
    )


def test_a_whole_clip_gives_what_the_library_gives_in_chunks():
    vae = small_vae()
    clip = torch.rand(2, 3, 13, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        expected = vae.encode(clip).latent_dist
        mean, log_variance = whole.encode(vae, clip)
        torch.testing.assert_close(mean, expected.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_variance, expected.logvar, rtol=1e-4, atol=1e-5)
        decoded = whole.decode(vae, mean).clamp(-1, 1)
        torch.testing.assert_close(decoded, vae.decode(mean).sample, rtol=1e-4, atol=1e-5)
    assert mean.shape == autoencoder.latent_shape(vae, clip)


def test_steps_of_the_autoencoder_lower_its_loss():
    vae = small_vae()
    optimizer = torch.optim.AdamW(vae.parameters(), 5e-3)
    line = torch.linspace(-1, 1, 16)
    clip = (line[:, None] * line).expand(1, 3, 5, 16, 16).contiguous()
    parts = [autoencoder.make_step(vae, optimizer, clip, autoencoder.losses) for _ in range(25)]
    first, last = (float(part["error"] + part["edge"]) for part in (parts[0], parts[-1]))
    assert last < 0.8 * first
    assert float(parts[-1]["kl"]) > 0


def test_a_slow_device_gets_up_to_half_more_time():
    assert autoencoder.allotted(200.0, 20.0, 1500) == 200.0
    assert autoencoder.allotted(200.0, 6.0, 1500) == 250.0
    assert autoencoder.allotted(200.0, 1.0, 1500) == 300.0


def new_state(tokenizer, folder: Path, start: Path | None = None) -> flow.State:
    return flow.resume(Namespace(start=start, out=folder), tokenizer, "cpu")


def test_steps_of_the_flow_lower_its_loss_and_train_the_text_encoder(small, tokenizer, tmp_path):
    state = new_state(tokenizer, tmp_path)
    before = state.model.encoder.shared.weight.clone()
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(4, 16, 2, 4, 4, generator=generator)
    ids = text.token_ids(tokenizer, ["a disc moves left", "a box", "", "an apple falls"])
    losses = []
    for _ in range(40):
        torch.manual_seed(0)  # the same noise and times
        loss = flow.flow_loss(state.model.transformer, state.model.encoder, (data, ids))
        flow.update(state, loss, 3e-3)
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert state.done["step"] == 40
    assert not torch.equal(before, state.model.encoder.shared.weight)
    weight = state.model.transformer.proj_out.weight
    average = state.average.transformer.proj_out.weight
    assert 0 < (average - weight).abs().max() < weight.abs().max()


def test_a_chunk_goes_on_from_the_last(small, tokenizer, tmp_path):
    state = new_state(tokenizer, tmp_path)
    data = torch.randn(2, 16, 2, 4, 4)
    ids = text.token_ids(tokenizer, ["a disc", "a box"])
    flow.update(state, flow.flow_loss(*vars_of(state), (data, ids)), 1e-3)
    state.curve.append({"step": 1, "loss": 2.0})
    state.done["seconds"] = 7.5
    flow.save(state, tmp_path)
    again = new_state(tokenizer, tmp_path)
    assert again.done == {"step": 1, "seconds": 7.5}
    assert again.curve == state.curve
    for part in ("model", "average"):
        expected, found = (getattr(one, part).state_dict() for one in (state, again))
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert json.loads((tmp_path / "flow.jsonl").read_text()) == {"step": 1, "loss": 2.0}


def vars_of(state: flow.State):
    return state.model.transformer, state.model.encoder


def test_the_rate_warms_up_holds_and_falls():
    assert flow.rate_at(0, 0.0) == pytest.approx(flow.RATE / flow.WARM_UP)
    assert flow.rate_at(10**6, 0.3) == flow.RATE
    assert flow.rate_at(10**6, 1.0) == 0
    assert 0 < flow.rate_at(10**6, 0.9) < 0.3 * flow.RATE


def test_a_chunk_ends_by_its_seconds_or_by_the_clock(monkeypatch):
    monkeypatch.setattr(flow.time, "time", lambda: 1000.0)
    asked = Namespace(seconds=50.0, total=None, until=None)
    assert flow.limits(asked, 20.0) == (70.0, 70.0)
    asked.total = 200.0
    assert flow.limits(asked, 20.0) == (70.0, 200.0)
    asked.until = 1030.0
    assert flow.limits(asked, 20.0) == (50.0, 50.0)
    asked.until = 900.0
    assert flow.limits(asked, 20.0) == (20.0, 20.0)


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory) -> Path:
    """Every script once, as the chain runs them."""
    work = tmp_path_factory.mktemp("work")
    np.savez(work / "emoji.npz", pictures=pictures())
    emoji.save(work / "animations.npz", {"3": animation()})
    data = ["--pictures", work / "emoji.npz", "--animations", work / "animations.npz"]
    data += ["--out", work]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "load_vocabulary", lambda: THINGS)
        for name, value in (("SHARD", 6), ("LEARNED", 200)):
            patch.setattr(corpus, name, value)
        for module in (autoencoder, flow):
            patch.setattr(module, "NOTED", 1)
        run_main(corpus, "--clips", 8, "--captions", 2, "--workers", 1, *data)
        small_run = ["--seconds", 0.01, "--batch", 1]
        run_main(autoencoder, *small_run, "--clips", 4, "--measured", 2, *data)
        run_main(flow, *small_run, *data)
        run_main(flow, *small_run, *data)
    (work / "prompts.txt").write_text("a disc moves left\na box\n")
    sheet = ["--prompts", work / "prompts.txt", "--sheet", work / "sheet", "--steps", 1]
    sheet += ["--guidance", 4, 2.5]
    run_main(export, "--work", work, "--out", work / "tiny-wan", *sheet)
    return work


def test_the_corpus_holds_clips_with_the_tokens_of_their_captions(trained):
    made = corpus.load_corpus(trained / "corpus.pt")
    assert made.ids.shape == (8, 2, TOKENS)
    assert len(made.arrays) == 8
    tokenizer = flow.load_tokenizer(trained)
    said = tokenizer.decode(made.ids[0, 0].long(), skip_special_tokens=True)
    assert any(name in said for thing in THINGS for name, _ in thing.names)


def test_the_latents_have_unit_variance_and_the_second_chunk_went_on(trained):
    settings = json.loads((trained / "vae" / "config.json").read_text())
    assert len(settings["latents_std"]) == config.CHANNELS
    assert settings["latents_std"] != config.AUTOENCODER["latents_std"]
    first = json.loads((trained / "autoencoder.jsonl").read_text().splitlines()[0])
    assert first["step"] == 1
    assert first["error"] > 0
    curve = [json.loads(line) for line in (trained / "flow.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in curve]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 2
    assert curve[-1]["clips"] == 8


def test_the_export_is_a_pipeline_that_makes_clips(trained):
    from diffusers import UniPCMultistepScheduler, WanPipeline

    folder = trained / "tiny-wan"
    pipe = WanPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    assert isinstance(pipe.scheduler, UniPCMultistepScheduler)
    assert pipe.scheduler.config.flow_shift == config.SHIFT
    call = {**models.default_call("tiny-wan"), "num_inference_steps": 1}
    made = pipe("a disc moves left", **call, output_type="pt").frames
    assert made.shape == (1, FRAMES, 3, SIZE, SIZE)
    index = json.loads((folder / "model_index.json").read_text())
    assert index["tokenizer"] == ["transformers", "PreTrainedTokenizerFast"]
    for file in folder.rglob("*.*"):
        assert stat.S_IMODE(file.stat().st_mode) == (0o755 if file.is_dir() else 0o644)
        if file.suffix == ".json":
            assert str(trained) not in file.read_text()


def test_the_card_and_the_sheet_are_written(trained):
    card = (trained / "tiny-wan" / "README.md").read_text()
    assert f"clips of {FRAMES} frames at {SIZE}x{SIZE}" in card
    assert "{" not in card
    with Image.open(trained / "sheet.gif") as moving:
        assert moving.n_frames == FRAMES
    assert (trained / "sheet-guidance-2.5.gif").is_file()
    with Image.open(trained / "sheet.png") as frames:
        assert frames.width > 6 * SIZE


def test_the_exported_model_is_one_of_the_registry_and_a_start(trained, tmp_path, small):
    pipe = models.load("tiny-wan", trained / "tiny-wan")
    assert type(pipe.scheduler).__name__ == "FlowMatchEulerDiscreteScheduler"
    tokenizer = flow.load_tokenizer(trained / "tiny-wan")
    state = new_state(tokenizer, tmp_path, start=trained / "tiny-wan")
    weight = state.model.transformer.proj_out.weight
    torch.testing.assert_close(weight.data, pipe.transformer.proj_out.weight.data)
    assert weight.dtype == torch.float32


# --- prompts and the chain


def test_the_command_writes_the_committed_prompts(tmp_path):
    run_main(prompts, "-o", tmp_path)
    for name in prompts.SETS:
        made = (tmp_path / f"{name}.jsonl").read_bytes()
        assert made == models.embedded("tiny-wan").prompts(name).read_bytes()


def test_the_sets_share_no_prompt():
    sheet = prompts.SHEET.read_text().splitlines()
    own = [read_prompts(models.embedded("tiny-wan").prompts(name)) for name in prompts.SETS]
    assert [len(one) for one in own] == [60, 60]
    everything = [*own[0], *own[1], *VIDEO_CALIBRATION, *{*sheet, *VIDEO_PROMPTS}]
    assert len(set(everything)) == len(everything)
    assert len(sheet) == 24


def test_every_word_that_is_asked_for_is_taught():
    names = corpus.Names({}, {0: 0})
    taught = set(re.findall(r"[a-z'-]+", " ".join(corpus.example_captions(12000, names)).lower()))
    asked = [*prompts.SHEET.read_text().splitlines(), *VIDEO_PROMPTS, *VIDEO_CALIBRATION]
    assert set(re.findall(r"[a-z'-]+", " ".join(asked).lower())) <= taught
    assert len(load_vocabulary()) == 341


def write_stand_in(folder: Path, fails: str) -> dict[str, str]:
    """A `python3` that notes its arguments and fails where told to."""
    script = folder / "python3"
    script.write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/calls\n'
        f'case "$*" in {fails}) echo broken; exit 1;; *) exit 0;; esac\n'
    )
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("fails", "end", "calls"),
    [("nothing", "done", 4), ("*flow*", "failed: flow", 4), ("*no-compile*", "done", 4)],
)
def test_the_chain_runs_every_stage_once_or_says_which_failed(tmp_path, fails, end, calls):
    root = FOLDER.parents[1]
    command = ["bash", "training/video/chain.sh", str(tmp_path / "w"), "1"]
    made = subprocess.run(command, cwd=root, env=write_stand_in(tmp_path, fails), timeout=60)
    assert made.returncode == (0 if end == "done" else 1)
    assert (tmp_path / "w" / "stamps").read_text().splitlines()[-1].split(" ", 1)[1] == end
    stages = (tmp_path / "calls").read_text().splitlines()
    assert len(stages) == calls
    assert sum("--no-compile" in stage for stage in stages) == (end != "done")
    assert all("emoji.npz" in stage for stage in stages if "export" not in stage)
