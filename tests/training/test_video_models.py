"""Text, autoencoder, flow and export of the video model, at sizes a test can afford."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.video_support import THINGS, animation, pictures, run_main
from training.video import autoencoder, config, contact, corpus, emoji, export, flow, prompts
from training.video.config import FRAMES, SIZE, TOKENS

from tacache import models
from tacache.prompts import read_prompts
from tacache_lab.demo.demo_request import VIDEO_CALIBRATION, VIDEO_PROMPTS

pytestmark = pytest.mark.slow

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
        made = ["--clips", 8, "--captions", 2, "--workers", 1]
        run_main(corpus, *made, *data)
        small_run = ["--seconds", 0.01, "--batch", 1]
        run_main(flow, *small_run, "--rehearse", *data)
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


def test_the_data_can_be_looked_at(trained, tmp_path, monkeypatch):
    for module in (contact, corpus):
        monkeypatch.setattr(module, "load_vocabulary", lambda: THINGS)
    data = ["--pictures", trained / "emoji.npz", "--animations", trained / "animations.npz"]
    run_main(contact, "--kind", "animated", "--count", 3, *data, "-o", tmp_path / "a.b")
    with Image.open(tmp_path / "a.b.gif") as moving:
        assert moving.n_frames == FRAMES
    assert (tmp_path / "a.b.png").is_file()


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
