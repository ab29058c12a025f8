import os
from pathlib import Path

import pytest
from tests.support import profile_from

from tacache import Certificate, Origin, Plan, Profile, ProfileError, instant_plan
from tacache.plan import LatentCertificate, LatentPlan

GOLDEN = Path(__file__).parents[1] / "golden"

PROFILE = Profile(
    times=(1.0, 0.8571428571428571, 0.6, 0.0),
    samples=8,
    magnitude=(-0.125, 0.1, 0.1),
    magnitude_std=(0.01, 0.0, 0.0),
    direction=(0.5, 1e-07, 1e-07),
    direction_std=(0.25, 1e-09, 1e-09),
    origin=Origin(
        kind="diffusers",
        pipeline="FluxPipeline",
        model="black-forest-labs/FLUX.1-dev",
        denoiser="FluxTransformer2DModel",
        scheduler="FlowMatchEulerDiscreteScheduler",
        scheduler_config={"shift": 3.0, "use_dynamic_shifting": True},
        latent_shape=(4096, 64),
        dtype="bfloat16",
        call={"guidance_scale": 3.5, "name": "é"},
        prompts_sha256="ab12",
    ),
)
PLAN = Plan(
    rule="tasu",
    times=PROFILE.times,
    anchors=(0, 1),
    magnitude=PROFILE.magnitude,
    direction=PROFILE.direction,
    tau_k=0.06,
    tau_d=0.6,
    max_skip=12,
    samples=8,
    origin=PROFILE.origin,
)
FITTED = Plan(
    rule="fitted",
    times=PROFILE.times,
    anchors=(0, 1, 2),
    weights=((1.0,), (1.25, -0.25), (1.5, -0.75, -0.3333333333333333)),
    samples=4,
)
FLOW = FITTED.model_copy(
    update={
        "certificate": Certificate(
            held_out=2,
            drift=0.0625,
            fit_drift=0.03,
            psnr=38.5,
            evaluations_spent=1850,
            date="2026-11-17",
            flow_drift=0.02,
            equivalent_steps=81.25,
        )
    }
)
LINEAR = instant_plan((1.0, 0.75, 0.5, 0.25, 0.0), 3, breaks=(0.3,))
JOINT = FITTED.model_copy(
    update={
        "latents": {
            "audio": LatentPlan(
                times=(1.0, 0.75, 0.5, 0.0),
                weights=((1.0,), (1.5, -0.5), (1.25, -0.25)),
                latent_shape=(207, 32),
                certificate=LatentCertificate(
                    drift=0.03125, worst_drift=0.0625, fit_drift=0.02, spectral_distance=1.75,
                    worst_spectral_distance=2.5,
                ),
            )
        }
    }
)  # fmt: skip
PINNED = {
    "v1.profile.json": PROFILE,
    "v1.plan.json": PLAN,
    "v1.fitted.plan.json": FITTED,
    "v1.flow.plan.json": FLOW,
    "v1.linear.plan.json": LINEAR,
    "v1.joint.plan.json": JOINT,
}


@pytest.mark.parametrize("name", PINNED)
def test_files_of_version_1_are_written_byte_for_byte(name, tmp_path):
    golden = (GOLDEN / name).read_bytes()
    assert PINNED[name].to_json().encode() == golden
    assert PINNED[name].save(tmp_path / name).read_bytes() == golden


@pytest.mark.parametrize("name", PINNED)
def test_files_of_version_1_are_read(name):
    loaded = type(PINNED[name]).load(GOLDEN / name)
    assert loaded == PINNED[name]
    assert type(loaded) is type(PINNED[name])


def test_saving_makes_the_folders_on_the_way(tmp_path):
    path = PROFILE.save(tmp_path / "a" / "b" / "x.json")
    assert path.is_file()
    assert os.listdir(path.parent) == ["x.json"]


def test_saving_takes_a_string(tmp_path):
    assert PROFILE.save(f"{tmp_path}/x.json") == tmp_path / "x.json"
    assert Profile.load(f"{tmp_path}/x.json") == PROFILE


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_a_failing_write_leaves_the_old_file_whole_and_nothing_else(broken, tmp_path, monkeypatch):
    path = PROFILE.save(tmp_path / "x.json")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises(OSError, match="No space left"):
        profile_from([1.0] * 3, [1.0] * 3).save(path)
    monkeypatch.undo()
    assert Profile.load(path) == PROFILE
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("value", [1e31, "\ud800", [[0] * 2, -(10**400)]])
def test_what_could_not_be_read_again_is_not_written(tmp_path, value):
    call = {"guidance_scale": 3.5, "other": value}
    profile = PROFILE.model_copy(update={"origin": Origin.model_construct(call=call)})
    with pytest.raises(ProfileError, match="could not be read again, so it is not written"):
        profile.save(tmp_path / "x.json")
    assert not any(tmp_path.iterdir())
