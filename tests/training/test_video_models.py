"""Text, autoencoder, flow and export of the video model, at sizes a test can afford."""

import json
import random
import re
import stat
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from video_support import THINGS, animation, clips_of, pictures, run_main

from tacache import models
from tacache.lab.demo.run import VIDEO_CALIBRATION, VIDEO_PROMPTS
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
    safety,
    text,
    whole,
)
from training.video import state as states
from training.video.captions import caption
from training.video.config import FRAMES, SIZE, TOKENS
from training.video.render import make_bank, pack, render, signed
from training.video.scenes import in_clips

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


def test_the_autoencoder_ends_by_the_clock(monkeypatch):
    monkeypatch.setattr(autoencoder.time, "time", lambda: 1000.0)
    assert autoencoder.allowed(Namespace(seconds=200.0, until=None)) == 300.0
    assert autoencoder.allowed(Namespace(seconds=200.0, until=1100.0)) == 100.0
    assert 0 < autoencoder.allowed(Namespace(seconds=200.0, until=900.0)) < 1


def new_state(tokenizer, folder: Path, start: Path | None = None) -> states.State:
    return states.resume(folder, tokenizer, "cpu", start)


def test_steps_of_the_flow_lower_its_loss_and_train_the_text_encoder(small, tokenizer, tmp_path):
    state = new_state(tokenizer, tmp_path)
    before = state.model.encoder.shared.weight.clone()
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(4, 16, 2, 4, 4, generator=generator)
    ids = text.token_ids(tokenizer, ["a disc moves left", "a box", "", "an apple falls"])
    losses = []
    for _ in range(40):
        torch.manual_seed(0)  # the same noise and times
        loss = flow.flow_loss(flow.velocity, state.model, (data, ids))
        states.update(state, loss, 3e-3)
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
    states.update(state, flow.flow_loss(flow.velocity, state.model, (data, ids)), 1e-3)
    state.curve.append({"step": 1, "loss": 2.0})
    state.done["seconds"] = 7.5
    states.save(state, tmp_path)
    again = new_state(tokenizer, tmp_path)
    assert again.done == {"step": 1, "seconds": 7.5}
    assert again.curve == state.curve
    for part in ("model", "average"):
        expected, found = (getattr(one, part).state_dict() for one in (state, again))
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert json.loads((tmp_path / "flow.jsonl").read_text()) == {"step": 1, "loss": 2.0}


def test_the_rate_warms_up_holds_and_falls():
    assert flow.rate_at(0, 0.0) == pytest.approx(flow.RATE / flow.WARM_UP)
    assert flow.rate_at(10**6, 0.3) == flow.RATE
    assert flow.rate_at(10**6, 1.0) == 0
    assert 0 < flow.rate_at(10**6, 0.9) < 0.3 * flow.RATE
    assert flow.rate_at(10**6, 0.3, 2e-4) == 2e-4


def test_times_cover_the_steps_of_the_shifted_grid():
    torch.manual_seed(0)
    t = flow.times(20000, torch.device("cpu"))
    assert 0 < t.min() < t.max() < 1
    assert 0.6 < t.median() < 0.75
    assert (t > 0.9).float().mean() > 0.1
    assert (t < 0.3).float().mean() > 0.05


# --- what keeps a run from being lost


def test_a_loss_that_is_not_finite_goes_back_to_the_last_good_weights():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    good = safety.LastGood(model, optimizer)

    def step(scale: float) -> torch.Tensor:
        optimizer.zero_grad()
        loss = scale * model(torch.ones(3, 2)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()[None]

    assert good.settle(step(1.0))
    kept = model.weight.detach().clone()
    assert not good.settle(step(float("nan")))
    assert torch.equal(model.weight, kept)
    moment = optimizer.state[model.weight]["exp_avg"].clone()
    assert not good.settle(step(float("inf")))  # the copies were not touched by the step
    assert torch.equal(model.weight, kept)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moment)
    assert good.settle(step(1.0))


def test_a_compiled_step_is_used_only_where_it_gives_the_same(monkeypatch, capsys):
    def step(x: float) -> float:
        return 2 * x

    def trial(run) -> list[float]:
        return [run(3.0)]

    def broken(function):
        raise RuntimeError("no compiler here")

    for compiler, said in (
        (lambda function: lambda x: 2.01 * x, "compiled: [6.0"),
        (lambda function: lambda x: 3 * x, "other numbers"),
        (lambda function: lambda x: float("nan"), "other numbers"),
        (broken, "not compiled: RuntimeError: no compiler here"),
    ):
        monkeypatch.setattr(torch, "compile", compiler)
        run = safety.checked(step, trial, wanted=True)
        assert (run is step) == (said != "compiled: [6.0")
        assert said in capsys.readouterr().out
    assert safety.checked(step, trial, wanted=False) is step


def test_the_steps_that_are_compiled_are_one_graph_each(small, tokenizer, tmp_path):
    pair = new_state(tokenizer, tmp_path).model
    torch.nn.init.normal_(pair.transformer.proj_out.weight)
    ids = text.token_ids(tokenizer, ["a disc moves left", "a box"])
    batch = (torch.randn(2, 16, 2, 4, 4), ids)
    graph = torch.compile(flow.velocity, fullgraph=True, backend="eager")
    found, expected = (flow.try_step(pair, batch, run) for run in (graph, flow.velocity))
    assert found == pytest.approx(expected, rel=1e-3)
    assert all(p.grad is None for p in pair.parameters())


def test_the_autoencoder_step_is_one_graph_and_keeps_channels_last():
    vae, clip = small_vae(), torch.rand(1, 3, 5, 16, 16) * 2 - 1
    graph = torch.compile(autoencoder.losses, fullgraph=True, backend="eager")
    found, expected = (autoencoder.try_step(vae, clip, run) for run in (graph, autoencoder.losses))
    assert found == pytest.approx(expected, rel=1e-3)
    last = torch.channels_last_3d
    x = torch.rand(2, 4, 5, 4, 4).contiguous(memory_format=last)
    longer = vae.decoder.up_blocks[0].upsamplers[0]
    assert whole._longer(longer, x).is_contiguous(memory_format=last)
    x = torch.rand(2, 8, 5, 4, 4).contiguous(memory_format=last)
    assert whole._shorter(vae.encoder.down_blocks[1], x).is_contiguous(memory_format=last)


def test_the_transformer_is_called_in_training_as_in_the_pipeline(small, tokenizer, tmp_path):
    """The same latents, step and prompt give the same velocity, pads and time included."""
    from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline

    pair = new_state(tokenizer, tmp_path).model.eval()
    torch.nn.init.normal_(pair.transformer.proj_out.weight)
    vae, prompt = small_vae(), "a disc moves left"
    scheduler = FlowMatchEulerDiscreteScheduler(shift=config.SHIFT)
    pipe = WanPipeline(tokenizer, pair.encoder, vae, scheduler, transformer=pair.transformer)
    pipe.set_progress_bar_config(disable=True)
    seen = []
    pair.transformer.register_forward_hook(
        lambda _, args, kwargs, output: seen.append((kwargs, output[0])), with_kwargs=True
    )
    call = {**models.default_call("tiny-wan"), "num_inference_steps": 3, "num_frames": 5}
    pipe(prompt, **call | {"height": 32, "width": 32}, output_type="latent")
    assert len(seen) == 6  # with the prompt and without, three times
    for words, (kwargs, expected) in zip([prompt, ""] * 3, list(seen), strict=True):
        ids = text.token_ids(tokenizer, [words])
        with torch.no_grad():
            found = flow.velocity(pair, kwargs["hidden_states"], kwargs["timestep"] / 1000, ids)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.is_floating_point(seen[0][0]["timestep"])
    assert float(seen[0][0]["timestep"].max()) == 1000


def test_a_machine_without_webp_makes_clips_without_animations(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "emoji.npz", pictures=pictures())
    monkeypatch.setattr(corpus, "load_vocabulary", lambda: THINGS)
    monkeypatch.setattr(corpus.features, "check", lambda name: False)
    bank = corpus.load_bank(tmp_path / "emoji.npz", tmp_path / "none.npz", "cpu")
    assert bank.animations == {}
    assert "no WebP here" in capsys.readouterr().out
    assert len(corpus.make_arrays(3, 1, corpus.names_of(bank))) == 3


def test_no_more_clips_are_encoded_than_time_allows(small, tokenizer):
    bank, vae = make_bank(pictures(), THINGS), small_vae()
    clips = pack(clips_of("alone", 6), bank)
    made = corpus.Corpus(clips, torch.zeros(6, 1, TOKENS, dtype=torch.int16))
    with_all = flow.encode_clips(vae, made, bank, batch=2)
    some = flow.encode_clips(vae, made, bank, seconds=0.0, batch=2)
    assert (len(with_all), len(some)) == (6, 2)
    torch.testing.assert_close(some, with_all[:2])


def test_encoded_clips_decode_as_the_pipeline_decodes_them(small):
    bank, vae = make_bank(pictures(), THINGS), small_vae()
    vae.register_to_config(latents_mean=[0.1] * 16, latents_std=[0.5] * 16)
    clips = pack(clips_of("alone", 1), bank)
    made = corpus.Corpus(clips, torch.zeros(1, 1, TOKENS, dtype=torch.int16))
    latents = flow.encode_clips(vae, made, bank).float()
    with torch.no_grad():
        mean = vae.encode(signed(render(clips, bank))).latent_dist.mean
    torch.testing.assert_close(latents * 0.5 + 0.1, mean, rtol=0.05, atol=0.05)


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


def test_the_autoencoder_goes_on_from_an_exported_one(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "load_vocabulary", lambda: THINGS)
    files = ["--pictures", trained / "emoji.npz", "--animations", trained / "animations.npz"]
    asked = ["--seconds", 0.01, "--batch", 1, "--clips", 4, "--measured", 2, "--rate", 0]
    run_main(autoencoder, *asked, "--start", trained / "tiny-wan", *files, "--out", tmp_path)
    before, after = (
        load_file(folder / "vae" / "diffusion_pytorch_model.safetensors")
        for folder in (trained / "tiny-wan", tmp_path)
    )
    assert all(torch.equal(before[name].float(), after[name]) for name in after)


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


def test_a_later_run_goes_on_from_the_exported_model(trained, tmp_path, small):
    work, start = tmp_path / "later", trained / "tiny-wan"
    data = ["--pictures", trained / "emoji.npz", "--animations", trained / "animations.npz"]
    data += ["--out", work, "--start", start]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "load_vocabulary", lambda: THINGS)
        patch.setattr(corpus, "SHARD", 6)
        patch.setattr(flow, "NOTED", 1)
        made = ["--clips", 8, "--captions", 2, "--workers", 1, "--seed", 3]
        run_main(corpus, *made, *data)
        run_main(flow, "--seconds", 0.01, "--batch", 1, "--rate", 1e-9, *data)
    run_main(export, "--work", work, "--out", work / "tiny-wan")
    for name in ("vae", "tokenizer"):
        assert (work / name).is_dir()
    paths = [corpus.load_corpus(one / "corpus.pt").arrays.paths for one in (trained, work)]
    assert not torch.equal(*paths)
    before, after = (models.load("tiny-wan", one / "tiny-wan") for one in (trained, work))
    for part in ("transformer", "vae", "text_encoder"):
        weights = (getattr(pipe, part).state_dict() for pipe in (before, after))
        for one, other in zip(*(w.values() for w in weights), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
    facts = [json.loads((one / "tiny-wan" / config.FACTS).read_text()) for one in (trained, work)]
    assert facts[1]["flow_steps"] > facts[0]["flow_steps"]
    assert facts[1]["psnr"] == facts[0]["psnr"]


# --- prompts


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
    assert len(in_clips(load_vocabulary())) == 130
