"""`tacache.bagel.calibrate`: what is measured, kept and refused."""

import json

import pytest
import torch
from PIL import Image
from tests import bagel_stand_in
from tests.bagel_stand_in import CALL, SIZE, packed_arguments

from tacache import Profile, make_plan
from tacache.bagel import applied, calibrate
from tacache.bagel.inferencer import BagelHost
from tacache.calibration import measure
from tacache.errors import HostError, ProfileError

PROMPTS = ["a red fox", "two boats", "a lamp"]


@pytest.fixture(scope="module")
def inferencer():
    return bagel_stand_in.inferencer()


def packing(inferencer, sizes=(SIZE, SIZE)):
    """A function of a prompt that packs images of these sizes into one call."""

    def generate(prompt, **call):
        arguments = packed_arguments(inferencer, [prompt] * len(sizes), list(sizes))
        return inferencer.model.generate_image(**arguments, num_timesteps=13, **call)

    return generate


def test_a_profile_is_that_of_the_runs_own_velocities(inferencer):
    seen, model = [], inferencer.model
    flow = model._forward_flow

    def watched(**arguments):
        seen.append(flow(**arguments))
        return seen[-1]

    model._forward_flow = watched
    try:
        torch.manual_seed(5)
        inferencer(text="a red fox", **CALL)
    finally:
        del model._forward_flow
    found = calibrate(inferencer, ["a red fox"], seeds=[5], **CALL)
    expected = measure([v[None] for v in seen], found.times, found.origin, found.breaks)
    assert found == expected


def test_the_profile_is_keyed_on_everything_velocities_depend_on(inferencer):
    host = calibrate(inferencer, ["a fox"], **CALL).origin
    assert (host.kind, host.pipeline, host.model) == ("bagel", "Bagel", "stand-in")
    assert (host.denoiser, host.latent_shape, host.dtype) == (
        "Qwen2ForCausalLM", (4, 64), "float32",
    )  # fmt: skip
    assert host.call == {
        "num_timesteps": 13,
        "timestep_shift": 3.0,
        "cfg_text_scale": 4.0,
        "cfg_img_scale": 1.0,
        "cfg_interval": [0.4, 1.0],
        "cfg_renorm_min": 0.0,
        "cfg_renorm_type": "global",
        "image_shapes": [32, 32],
    }
    other = calibrate(inferencer, ["a fox"], **CALL | {"image_shapes": (16, 64)}).origin
    assert other.latent_shape == host.latent_shape
    assert other.call != host.call


def test_a_resolution_is_not_guessed_where_positions_are_interpolated(inferencer, monkeypatch):
    monkeypatch.setattr(inferencer.model.config, "interpolate_pos", True)
    assert calibrate(inferencer, ["a fox"], **CALL).origin.call["image_shapes"] is None


def test_every_prompt_runs_with_every_seed(inferencer, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    found = calibrate(inferencer, file, seeds=[0, 7], **CALL)
    assert found.samples == 6
    parts = [calibrate(inferencer, PROMPTS, seeds=[seed], **CALL) for seed in (0, 7)]
    assert Profile.merge(parts).magnitude == pytest.approx(found.magnitude, rel=1e-12)


def test_packed_images_are_samples_of_their_own(inferencer):
    found = calibrate(inferencer.model, ["a fox"], generate=packing(inferencer))
    assert found.samples == 2
    assert max(found.magnitude_std) > 0
    assert found.origin.latent_shape == (4, 64)
    with pytest.raises(HostError, match="images of one size together"):
        calibrate(inferencer.model, ["a fox"], generate=packing(inferencer, [SIZE, (48, 48)]))
    with pytest.raises(HostError, match="images of one size together"):
        calibrate(inferencer.model, ["a fox"], generate=packing(inferencer, [(32, 32), (16, 64)]))


def test_full_steps_are_measured_though_a_plan_is_applied(inferencer):
    plain = calibrate(inferencer, ["a fox"], **CALL)
    with applied(inferencer, make_plan(plain, evaluations=5)):
        assert calibrate(inferencer, ["a fox"], **CALL) == plain


def test_a_picture_to_edit_goes_to_the_inferencer(inferencer, tmp_path):
    def edited(shade, resume=None):
        image = Image.new("RGB", (8, 8), (shade, shade, shade))
        return calibrate(inferencer, ["a fox"], image=image, resume=resume, **CALL)

    assert edited(10) != calibrate(inferencer, ["a fox"], **CALL)
    kept = tmp_path / "e.runs"
    assert edited(10, kept) == edited(10, kept)
    with pytest.raises(ProfileError, match="another calibration"):
        edited(200, kept)


def test_random_numbers_of_the_program_are_left_alone(inferencer):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    calibrate(inferencer, ["a fox"], seeds=[4], **CALL)
    assert torch.equal(torch.rand(3), expected)


def test_killed_it_goes_on_where_it_stopped(inferencer, tmp_path, monkeypatch):
    kept, record, done = tmp_path / "deep" / "b.runs", BagelHost.record, []

    def dying(self, samples, call):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(samples[0].prompt)
        return record(self, samples, call)

    whole = calibrate(inferencer, PROMPTS, **CALL)
    monkeypatch.setattr(BagelHost, "record", dying)
    with pytest.raises(KeyboardInterrupt):
        calibrate(inferencer, PROMPTS, resume=kept, **CALL)
    with kept.open("a") as file:
        file.write('{"job": "torn')
    done[:] = done[:1]
    assert calibrate(inferencer, PROMPTS, resume=kept, **CALL) == whole
    assert done[1:] == PROMPTS[2:]
    first, second, torn, third = kept.read_text().splitlines()
    assert [json.loads(line)["run"] for line in (first, second, third)] == [0, 1, 2]
    assert torn == '{"job": "torn'
    with pytest.raises(ProfileError, match="runs of another calibration"):
        calibrate(inferencer, PROMPTS, resume=kept, **CALL | {"cfg_text_scale": 5.0})
    for text in ("a diary\n", "a diary"):
        kept.write_text(text)
        with pytest.raises(ProfileError, match="is no file of finished runs"):
            calibrate(inferencer, PROMPTS, resume=kept, **CALL)
        assert kept.read_text() == text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"cfg_text_scal": 4}, r"no argument 'cfg_text_scal' \(meant 'cfg_text_scale'\?\)"),
        ({"understanding_output": True}, "no argument 'understanding_output'"),
        ({"zzz": 1}, "no argument 'zzz'$"),
        ({"enable_taylorseer": True}, "enable_taylorseer=True does not go"),
    ],
)
def test_wrong_arguments_stop_before_the_first_run(inferencer, call, message):
    with pytest.raises(HostError, match=message):
        calibrate(inferencer, PROMPTS, **call)


def test_a_model_alone_needs_a_function(inferencer):
    with pytest.raises(HostError, match="makes no picture of a prompt"):
        calibrate(inferencer.model, PROMPTS)
    with pytest.raises(HostError, match="'a red fox' with seed 0: generate_image of the model was"):
        calibrate(inferencer.model, PROMPTS, generate=lambda prompt: None)


def test_a_host_that_fails_is_an_error_that_names_its_prompt(inferencer, monkeypatch):
    def failing(*args, **call):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(inferencer, "decode_image", failing)
    with pytest.raises(HostError, match="'two boats' with seed 3: out of memory"):
        calibrate(inferencer, ["two boats"], seeds=[3], **CALL)
