"""Lists of prompts on Ray: the same files as in one process, and only what is missing."""

import json

import pytest
from tests.command_line import run

pytest.importorskip("ray")

from tests.tiny import PIPELINES

pytestmark = pytest.mark.slow

SIZE = ["--height", "32", "--width", "32", "--call", "max_sequence_length=32", "--steps", "12"]


@pytest.fixture
def asked(tmp_path):
    """A command for three prompts with two seeds each."""
    PIPELINES["flux"].build().save_pretrained(tmp_path / "flux")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a fox\na boat\na lamp\n")
    import ray

    yield ["generate", tmp_path / "flux", "--prompts", prompts, "-n", 2, "--speedup", 2, *SIZE]
    ray.shutdown()


def test_ray_makes_the_same_files_and_goes_on_where_it_stopped(asked, tmp_path):
    alone, spread = tmp_path / "alone", tmp_path / "spread"
    assert run(*asked, "-o", alone).exit_code == 0
    made = run(*asked, "-o", spread, "--ray", "--copies", 2, "--json")
    assert made.exit_code == 0, made.output
    wanted = {path.name: path.read_bytes() for path in alone.iterdir()}
    assert len(wanted) == 6
    assert {path.name: path.read_bytes() for path in spread.glob("*.png")} == wanted
    outputs = json.loads(made.stdout)["outputs"]
    assert [one["file"] for one in outputs] == sorted(str(spread / name) for name in wanted)
    assert {one["evaluations"] for one in outputs} == {6}

    lost = spread / sorted(wanted)[3]
    lost.unlink()
    kept = {path: path.stat().st_mtime_ns for path in spread.glob("*.png")}
    again = run(*asked, "-o", spread, "--ray")
    assert "5 of 6 outputs are there already" in again.stderr
    assert again.stdout.count(".png") == 1
    assert lost.read_bytes() == wanted[lost.name]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    nothing = run(*asked, "-o", spread, "--ray")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


@pytest.mark.parametrize("more", [["--ray", "--compare"], ["--ray", "--learn", "2"],
                                  ["--copies", "2"]])  # fmt: skip
def test_options_that_do_not_go_together_are_refused(more):
    refused = run("generate", "tiny-flux", "--prompt", "a fox", "--speedup", 4, *more)
    assert refused.exit_code == 2
    assert "--ray" in refused.stderr
