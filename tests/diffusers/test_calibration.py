"""Calibration on a pipeline: what it measures, records, resumes and shares out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.diffusers_support import STEPS, profile_of, recorded, run, under_torchrun
from tests.tiny import PIPELINES
from tests.tiny.pictures import picture
from torch import Tensor

from tacache import HostError, Profile, ProfileError, TACacheError
from tacache.diffusers import calibrate

FLUX, WAN = PIPELINES["flux"], PIPELINES["wan"]
PROMPTS = ["a red fox in the snow", "two blue birds", "an old stone bridge", "a bowl of soup"]
SHORT = 5


def flux_call(**changes: Any) -> dict[str, Any]:
    call = FLUX.call() | {"num_inference_steps": SHORT} | changes
    call.pop("prompt", None)
    return call


@pytest.fixture
def flux() -> Any:
    return FLUX.build()


@pytest.fixture(scope="module")
def undisturbed() -> Profile:
    return calibrate(FLUX.build(), PROMPTS, **flux_call())


@pytest.fixture
def encoded(monkeypatch) -> list[Any]:
    """The prompts that reach a Flux pipeline, one entry a run; "kill" stops the run."""
    from diffusers import FluxPipeline

    seen: list[Any] = []
    encode = FluxPipeline.encode_prompt

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "kill" in kill and len(seen) == kill["kill"]:
            raise KeyboardInterrupt
        seen.append(kwargs["prompt"])
        return encode(self, *args, **kwargs)

    kill: dict[str, int] = {}
    monkeypatch.setattr(FluxPipeline, "encode_prompt", watched)
    monkeypatch.setattr(FluxPipeline, "kill_at", kill, raising=False)
    return seen


def numbers(profile: Profile) -> np.ndarray:
    """Everything a profile measured."""
    names = ("times", "magnitude", "magnitude_std", "direction", "direction_std")
    return np.concatenate([getattr(profile, name) for name in names])


def assert_same(found: Profile, expected: Profile, rtol: float) -> None:
    assert found.samples == expected.samples
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=rtol, atol=rtol * 1e-2)


# --- what it measures -------------------------------------------------------------------------


def rates(velocities: list[Tensor], times: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 2-4 written out: k and d of each step and sample."""
    v = [one.double().flatten(1).numpy() for one in velocities]
    k, d = [], []
    for n in range(len(v) - 1):
        change, size = v[n + 1] - v[n], (v[n] ** 2).sum(axis=1)
        along = (change * v[n]).sum(axis=1) / size
        across = change - along[:, None] * v[n]
        k.append(along / (times[n] - times[n + 1]))
        d.append(np.sqrt((across**2).sum(axis=1) / size))
    return np.array(k), np.array(d)


@pytest.mark.parametrize("name", ["flux", "sd3", "wan", "mochi", "ltx", "sana", "bria"])
def test_the_profile_is_that_of_the_recorded_velocities(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    profile = profile_of(tiny, pipe)
    with recorded(pipe) as velocities:
        run(tiny, pipe)
    run(tiny, pipe)
    sigmas = pipe.scheduler.sigmas.tolist()
    times = [1 - s for s in sigmas] if pipe.scheduler.config.get("invert_sigmas") else sigmas
    assert profile.times == pytest.approx(times)
    ((k, d),) = [rates(one, profile.times) for one in velocities.values()]
    assert profile.magnitude[:-1] == pytest.approx(k[:, 0], rel=1e-9)
    assert profile.direction[:-1] == pytest.approx(d[:, 0], rel=1e-9)
    assert (profile.magnitude[-1], profile.direction[-1]) == (
        profile.magnitude[-2],
        profile.direction[-2],
    )
    assert profile.samples == 1


def test_means_and_deviations_over_prompts_and_seeds(flux):
    seeds = [0, 7]
    profile = calibrate(flux, PROMPTS[:2], seeds=seeds, **flux_call())
    parts = []
    for prompt in PROMPTS[:2]:
        for seed in seeds:
            with recorded(flux) as velocities:
                run(
                    FLUX,
                    flux,
                    prompt=prompt,
                    num_inference_steps=SHORT,
                    generator=torch.Generator().manual_seed(seed),
                )
            parts.append(rates(*velocities.values(), profile.times))
    k, d = (np.concatenate(one, axis=1) for one in zip(*parts, strict=True))
    assert profile.samples == 4
    for found, expected in (
        (profile.magnitude, k.mean(1)),
        (profile.magnitude_std, k.std(1, ddof=1)),
        (profile.direction, d.mean(1)),
        (profile.direction_std, d.std(1, ddof=1)),
    ):
        assert found[:-1] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_two_experts_do_not_mix():
    """The change from one expert to the other belongs to neither."""
    tiny = PIPELINES["wan-2.2"]
    pipe = tiny.build()
    profile = profile_of(tiny, pipe)
    (switch,) = [n for n, t in enumerate(profile.times) if t < 0.875 <= profile.times[n - 1]]
    assert profile.breaks == (0.875,)
    assert profile.magnitude[switch - 1] == profile.magnitude[switch - 2]
    assert profile.direction[switch - 1] == profile.direction[switch - 2]


def test_the_profile_of_a_late_start():
    tiny = PIPELINES["flux-img2img"]
    pipe = tiny.build()
    whole, late = profile_of(tiny, pipe), profile_of(tiny, pipe, strength=0.5)
    assert late.times == whole.times[STEPS // 2 :]


def test_pictures_and_frames_are_not_decoded(monkeypatch):
    for tiny in (FLUX, WAN):
        pipe = tiny.build()
        monkeypatch.setattr(pipe.vae, "decode", None)
        assert profile_of(tiny, pipe).samples == 1


@pytest.mark.parametrize("batch_size", [2, 3, 10])
def test_the_batch_size_makes_no_difference(flux, undisturbed, encoded, batch_size):
    profile = calibrate(flux, PROMPTS, batch_size=batch_size, **flux_call())
    assert_same(profile, undisturbed, rtol=1e-5)
    assert len(encoded) == -(-len(PROMPTS) // batch_size)
    assert profile.origin == undisturbed.origin


def test_several_pictures_a_prompt_are_samples(flux):
    profile = calibrate(flux, PROMPTS[:1], num_images_per_prompt=3, **flux_call())
    assert profile.samples == 3
    assert min(profile.direction_std) > 0


def test_embeddings_in_place_of_prompts(flux):
    embeds, pooled, _ = flux.encode_prompt(PROMPTS[:2], prompt_2=None, max_sequence_length=32)
    expected = calibrate(flux, PROMPTS[:1], seeds=[0, 1], **flux_call())
    call = flux_call(prompt_embeds=embeds[:1], pooled_prompt_embeds=pooled[:1])
    found = calibrate(flux, None, seeds=[0, 1], **call)
    assert_same(found, expected, rtol=1e-4)
    assert found.origin.prompts_sha256 is None
    both = calibrate(flux, None, **flux_call(prompt_embeds=embeds, pooled_prompt_embeds=pooled))
    assert both.samples == 2


# --- what it records --------------------------------------------------------------------------


def test_the_host_is_recorded():
    pipe = WAN.build()
    pipe.register_to_config(_name_or_path="someone/wan")
    host = profile_of(WAN, pipe).origin
    call = WAN.call()
    prompt = call.pop("prompt")
    assert (host.kind, host.pipeline, host.model) == ("diffusers", "WanPipeline", "someone/wan")
    assert (host.denoiser, host.scheduler) == ("WanTransformer3DModel", "UniPCMultistepScheduler")
    assert host.scheduler_config["flow_shift"] == 3.0
    assert host.scheduler_config["prediction_type"] == "flow_prediction"
    assert host.latent_shape == (16, 2, 2, 2)
    assert host.dtype == "float32"
    assert host.call == call | {"num_inference_steps": STEPS}
    assert host.prompts_sha256 == hashlib.sha256(prompt.encode()).hexdigest()


def test_what_the_call_leaves_out_is_recorded_too(flux):
    """Resolution and guidance are part of what was measured, given or not."""
    flux.default_sample_size = 8
    profile = calibrate(flux, PROMPTS[:1], num_inference_steps=2, max_sequence_length=32)
    side = 8 * flux.vae_scale_factor
    assert profile.origin.call["guidance_scale"] == 3.5
    assert (profile.origin.call["height"], profile.origin.call["width"]) == (side, side)


def test_bfloat16_is_recorded(flux):
    flux.to(torch.bfloat16)
    assert calibrate(flux, PROMPTS[:1], **flux_call()).origin.dtype == "bfloat16"


def test_the_profile_file_carries_all_of_it(undisturbed, tmp_path):
    assert Profile.load(undisturbed.save(tmp_path / "flux.json")) == undisturbed


# --- prompts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["txt", "jsonl", "generator", "path as text"])
def test_prompts_come_from_lists_and_files(flux, undisturbed, tmp_path, kind, encoded):
    text, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_text("\n".join(["# four prompts", *PROMPTS, ""]))
    lines.write_text("".join(json.dumps({"prompt": p, "category": "x"}) + "\n" for p in PROMPTS))
    source = {
        "txt": text,
        "jsonl": lines,
        "generator": (prompt for prompt in PROMPTS),
        "path as text": str(lines),
    }[kind]
    assert calibrate(flux, source, **flux_call()) == undisturbed
    assert encoded == PROMPTS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": "missing.txt"}, "cannot read prompts"),
        ({"batch_size": 0}, "batch_size"),
        ({"generator": torch.Generator()}, "seeds"),
        ({"seeds": []}, "at least one"),
        ({"guidance_scal": 3.5}, "meant 'guidance_scale'"),
    ],
    ids=["no prompts", "no file", "no batch", "generator", "no seeds", "misspelt"],
)
def test_bad_arguments_are_errors_before_any_run(flux, encoded, changes, message):
    call = {"prompts": PROMPTS} | flux_call() | changes
    before = flux.scheduler
    with pytest.raises(TACacheError, match=message):
        calibrate(flux, **call)
    assert not encoded
    assert flux.scheduler is before


def test_an_empty_file_is_an_error(flux, tmp_path):
    (tmp_path / "empty.txt").write_text("\n# nothing\n")
    with pytest.raises(HostError, match="has no prompts"):
        calibrate(flux, tmp_path / "empty.txt", **flux_call())


def test_velocities_that_are_no_numbers_name_the_prompt(flux, encoded):
    flux.transformer.register_forward_hook(
        lambda module, args, result: (result[0] * float("nan"),) if len(encoded) == 3 else None
    )
    before = flux.scheduler
    with pytest.raises(ProfileError, match=rf"{PROMPTS[2]}.* seed 5.*not a number"):
        calibrate(flux, PROMPTS, seeds=[5], **flux_call())
    assert flux.scheduler is before


def test_the_pipeline_is_as_before(flux):
    before, expected = flux.scheduler, run(FLUX, flux)
    calibrate(flux, PROMPTS[:1], **flux_call())
    assert flux.scheduler is before
    assert torch.equal(run(FLUX, flux), expected)


def test_progress_is_shown_on_request(flux, capsys):
    calibrate(flux, PROMPTS[:1], **flux_call())
    assert "calibrating" not in capsys.readouterr().err
    calibrate(flux, PROMPTS[:1], progress=True, **flux_call())
    assert "calibrating" in capsys.readouterr().err


# --- resuming ---------------------------------------------------------------------------------


def kill_after(pipe: Any, runs: int, resume: Path, **changes: Any) -> None:
    """A calibration that is stopped while it encodes the next prompt."""
    pipe.kill_at["kill"] = runs
    with pytest.raises(KeyboardInterrupt):
        calibrate(pipe, PROMPTS, resume=resume, **flux_call(**changes))
    del pipe.kill_at["kill"]


def test_a_killed_calibration_goes_on(flux, undisturbed, encoded, tmp_path):
    resume = tmp_path / "deep" / "runs.jsonl"
    before = flux.scheduler
    kill_after(flux, 2, resume)
    assert flux.scheduler is before
    assert encoded == PROMPTS[:2]
    encoded.clear()
    assert calibrate(flux, PROMPTS, resume=resume, **flux_call()) == undisturbed
    assert encoded == PROMPTS[2:]
    encoded.clear()
    assert calibrate(flux, PROMPTS, resume=resume, **flux_call()) == undisturbed
    assert not encoded


def test_killed_again_and_again(flux, undisturbed, encoded, tmp_path):
    resume = tmp_path / "runs.jsonl"
    for _ in range(3):
        encoded.clear()
        kill_after(flux, 1, resume)
    encoded.clear()
    assert calibrate(flux, PROMPTS, resume=resume, **flux_call()) == undisturbed
    assert encoded == PROMPTS[3:]


def test_a_torn_last_line_is_run_again(flux, undisturbed, encoded, tmp_path):
    resume = tmp_path / "runs.jsonl"
    kill_after(flux, 2, resume)
    resume.write_bytes(resume.read_bytes()[:-40])
    encoded.clear()
    kill_after(flux, 1, resume)
    assert encoded == [PROMPTS[1]]
    encoded.clear()
    assert calibrate(flux, PROMPTS, resume=resume, **flux_call()) == undisturbed
    assert encoded == PROMPTS[2:]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": PROMPTS[:3]},
        {"prompts": PROMPTS[::-1]},
        {"seeds": [1]},
        {"batch_size": 2},
        {"num_inference_steps": SHORT + 1},
        {"guidance_scale": 1.0},
        {"height": 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_jobs_file_is_an_error(flux, encoded, tmp_path, changes):
    resume = tmp_path / "runs.jsonl"
    kill_after(flux, 1, resume)
    before = resume.read_bytes()
    encoded.clear()
    call = {"prompts": PROMPTS} | flux_call() | changes
    with pytest.raises(ProfileError, match="another calibration"):
        calibrate(flux, resume=resume, **call)
    assert resume.read_bytes() == before
    assert not encoded


def test_another_schedulers_file_is_an_error(flux, encoded, tmp_path):
    resume = tmp_path / "runs.jsonl"
    kill_after(flux, 1, resume)
    flux.scheduler = type(flux.scheduler).from_config(flux.scheduler.config, shift=9.0)
    with pytest.raises(ProfileError, match="another calibration"):
        calibrate(flux, PROMPTS, resume=resume, **flux_call())


def test_other_embeddings_are_another_job(flux, tmp_path):
    embeds, pooled, _ = flux.encode_prompt(PROMPTS[:2], prompt_2=None, max_sequence_length=32)
    resume = tmp_path / "runs.jsonl"
    for i in range(2):
        call = flux_call(prompt_embeds=embeds[i : i + 1], pooled_prompt_embeds=pooled[i : i + 1])
        if i == 0:
            calibrate(flux, None, resume=resume, **call)
        else:
            with pytest.raises(ProfileError, match="another calibration"):
                calibrate(flux, None, resume=resume, **call)


def test_another_picture_is_another_job(tmp_path):
    tiny = PIPELINES["flux-kontext"]
    pipe = tiny.build()
    resume = tmp_path / "runs.jsonl"
    call = tiny.call() | {"num_inference_steps": SHORT}
    prompts = [call.pop("prompt")]
    calibrate(pipe, prompts, resume=resume, **call)
    upside_down = picture(32).rotate(180)
    assert upside_down.tobytes() != picture(32).tobytes()
    with pytest.raises(ProfileError, match="another calibration"):
        calibrate(pipe, prompts, resume=resume, **call | {"image": upside_down})


def test_another_dtype_is_another_job(flux, tmp_path):
    resume = tmp_path / "runs.jsonl"
    calibrate(flux, PROMPTS[:1], resume=resume, **flux_call())
    flux.to(torch.bfloat16)
    with pytest.raises(ProfileError, match="another calibration"):
        calibrate(flux, PROMPTS[:1], resume=resume, **flux_call())


@pytest.mark.parametrize(
    "content",
    [b"a red fox in the snow\n", b'{"prompt": "a red fox"}\n', b"[1, 2]\n", b"\xff\xfe\x00\n"],
    ids=["text", "jsonl", "json", "bytes"],
)
def test_a_file_of_another_kind_is_an_error_and_stays_as_it_is(flux, encoded, tmp_path, content):
    """As when the file of prompts is named by mistake."""
    resume = tmp_path / "mistaken"
    resume.write_bytes(content)
    with pytest.raises(ProfileError, match="mistaken"):
        calibrate(flux, PROMPTS, resume=resume, **flux_call())
    assert resume.read_bytes() == content
    assert not encoded


def test_a_torn_line_in_the_middle_is_run_again(flux, encoded, tmp_path):
    resume = tmp_path / "runs.jsonl"
    kill_after(flux, 2, resume)
    first, second = resume.read_text().splitlines(keepends=True)
    resume.write_text(first[:50] + "\n" + second)
    found = calibrate(flux, PROMPTS, resume=resume, **flux_call())
    assert found == calibrate(flux, PROMPTS, **flux_call())


# --- several processes ------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
from pathlib import Path
from tacache.diffusers import calibrate
from tests.diffusers_support import PIPELINES, torch

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
pipe = PIPELINES["flux"].build()
encode, answers = pipe.encode_prompt, []

def watched(*args, **kwargs):
    if kwargs["prompt"] == job.get("bad"):
        raise ValueError("this prompt cannot be encoded")
    runs.append(kwargs["prompt"])
    return encode(*args, **kwargs)

pipe.encode_prompt = watched
for name, job in json.loads((folder / "jobs.json").read_text()).items():
    runs = []
    try:
        profile = calibrate(pipe, job["prompts"], resume=folder / name, **job["call"])
        answers.append({"profile": profile.to_json(), "runs": runs})
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}", "runs": runs})
(folder / f"{rank}.json").write_text(json.dumps(answers))
sys.exit("error" in answers[-1])
"""


class Launched(NamedTuple):
    """The launcher's exit code, where runs are kept, and what each process found, job by job."""

    code: int
    folder: Path
    whole: list[dict[str, Any]]
    failing: list[dict[str, Any]]


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Launched:
    """Two calibrations in two processes, of which the second process fails in the second one.

    There it has one prompt of three, the failing one.
    """
    jobs = {"whole": {"prompts": PROMPTS}, "failing": {"prompts": PROMPTS[:3], "bad": PROMPTS[1]}}
    folder = tmp_path_factory.mktemp("processes")
    every = {name: {"call": flux_call()} | job for name, job in jobs.items()}
    (folder / "jobs.json").write_text(json.dumps(every))
    code, answers = under_torchrun(folder, SCRIPT)
    whole, failing = (list(both) for both in zip(*answers, strict=True))
    return Launched(code, folder, whole, failing)


@pytest.mark.slow
def test_two_processes_measure_what_one_does(undisturbed, flux, encoded, launched):
    first, second = (Profile.from_json(answer["profile"]) for answer in launched.whole)
    assert first == second
    assert_same(first, undisturbed, rtol=1e-12)
    assert first.origin == undisturbed.origin
    assert [len(answer["runs"]) for answer in launched.whole] == [2, 2]
    runs = (prompt for answer in launched.whole for prompt in answer["runs"])
    assert sorted(runs) == sorted(PROMPTS)
    # One process goes on from what the two left.
    alone = calibrate(flux, PROMPTS, resume=launched.folder / "whole", **flux_call())
    assert_same(alone, first, rtol=1e-12)
    assert not encoded


@pytest.mark.slow
def test_a_failure_in_one_process_ends_both(launched):
    assert launched.code != 0
    reason = f"{PROMPTS[1]!r} with seed 0: this prompt cannot be encoded"
    first, second = (answer["error"] for answer in launched.failing)
    assert second == f"HostError: {reason}"
    assert first == f"HostError: another process failed: process 1: {reason}"
