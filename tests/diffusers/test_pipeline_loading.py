"""Pipelines by name: a folder that has only blocks is a modular pipeline, for every command."""

import pytest
from diffusers import FluxModularPipeline, FluxPipeline
from tests.tiny import PIPELINES
from tests.tiny.further_modular import MINIMAX_H3
from tests.tiny.joint import minimax
from typer.testing import CliRunner

from tacache import HostError, Plan, Profile
from tacache.cli.command_line import app
from tacache.diffusers.pipeline_loading import Loading, load_pipeline

RUN = ["--steps", "6", "--height", "32", "--width", "32", "--guidance", "3.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A saved modular pipeline."""
    path = tmp_path_factory.mktemp("modular")
    PIPELINES["modular-flux"].build().save_pretrained(str(path), overwrite_modular_index=True)
    return str(path)


def command(*words: str):
    return CliRunner().invoke(app, words)


@pytest.mark.slow
def test_a_folder_of_blocks_is_a_modular_pipeline(folder, tmp_path):
    pipe = load_pipeline(folder, Loading(device="cpu"))
    assert type(pipe) is FluxModularPipeline
    assert pipe.transformer is not None
    PIPELINES["flux"].build().save_pretrained(tmp_path)
    assert type(load_pipeline(str(tmp_path), Loading(device="cpu"))) is FluxPipeline


@pytest.mark.slow
def test_of_several_networks_only_the_one_for_a_prompt_is_loaded(tmp_path):
    """MiniMax-H3's repository has a second one of the same size, for references."""
    pipe = minimax()
    pipe.update_components(transformer_ref=MINIMAX_H3["transformer"]())
    pipe.save_pretrained(str(tmp_path), overwrite_modular_index=True)
    assert (tmp_path / "transformer_ref").is_dir()
    loaded = load_pipeline(str(tmp_path), Loading(device="cpu"))
    assert loaded.transformer is not None
    assert loaded.transformer_ref is None


def test_a_folder_without_a_pipeline_is_named(tmp_path):
    with pytest.raises(HostError, match="model_index"):
        load_pipeline(str(tmp_path), Loading(device="cpu"))


@pytest.mark.slow
def test_a_modular_pipeline_is_measured_and_follows_plans(folder, tmp_path):
    profile, plan = str(tmp_path / "flux.profile.json"), str(tmp_path / "flux.plan.json")
    measured = command("calibrate", folder, *RUN, "--count", "2", "-o", profile)
    assert measured.exit_code == 0, measured.output
    call = Profile.load(profile).origin.call
    assert call["num_inference_steps"] == 6
    assert "num_warmup_steps" not in call  # which a block hands to the next
    assert command("plan", profile, "--evaluations", "5", "-o", plan).exit_code == 0
    assert Plan.load(plan).evaluations == 5
    words = ("--plan", plan, "--prompt", "a fox", "-o", str(tmp_path / "drawn"))
    drawn = command("generate", folder, *words)
    assert drawn.exit_code == 0, drawn.output
    assert list((tmp_path / "drawn").glob("*.png"))


@pytest.mark.slow
def test_a_modular_pipeline_is_faster_at_once(folder, tmp_path):
    words = ("--evaluations", "5", "--prompt", "a fox", "--compare", "-o", str(tmp_path))
    drawn = command("generate", folder, *RUN, *words)
    assert drawn.exit_code == 0, drawn.output
    assert len(list(tmp_path.glob("*-pair.png"))) == 1


@pytest.mark.slow
def test_a_misspelt_argument_of_a_modular_pipeline_is_named(folder, tmp_path):
    words = ("--prompt", "a fox", "--call", "heigth=32", "-o", str(tmp_path))
    drawn = command("generate", folder, "--steps", "6", "--evaluations", "5", *words)
    assert drawn.exit_code == 2
    assert "heigth" in drawn.output
    assert not list(tmp_path.iterdir())
