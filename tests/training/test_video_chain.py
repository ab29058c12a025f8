"""The scripts that run the whole training of the video model, with stand-ins for its stages."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from training.video import card, config

pytestmark = pytest.mark.slow

FOLDER = Path(card.__file__).parent


def write_stand_in(folder: Path, fails: str) -> dict[str, str]:
    """A `python3` that notes its arguments and fails where told to."""
    script = folder / "python3"
    script.write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/calls\n'
        f'case "$*" in {fails}) echo broken; exit 1;; *) exit 0;; esac\n'
    )
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def run_chain(folder: Path, fails: str, **settings: str) -> tuple[int, str, list[str]]:
    """Exit code, last stamp and the calls of a chain of stand-ins."""
    command = ["bash", "training/video/chain.sh", str(folder / "w"), "5"]
    environment = write_stand_in(folder, fails) | settings
    made = subprocess.run(command, cwd=FOLDER.parents[1], env=environment, timeout=60)
    end = (folder / "w" / "stamps").read_text().splitlines()[-1].split(" ", 1)[1]
    return made.returncode, end, (folder / "calls").read_text().splitlines()


def called(calls: list[str], *words: str) -> list[str]:
    """Those calls that hold these words."""
    return [call for call in calls if all(word in call for word in words)]


def test_the_chain_runs_every_stage_once(tmp_path):
    code, end, calls = run_chain(tmp_path, "nothing")
    assert (code, end, len(calls)) == (0, "done", 5)
    assert not called(calls, "--no-compile")
    assert all("emoji.npz" in call for call in calls if "export" not in call)
    assert len(called(calls, ".flow", "--rehearse")) == 1
    assert called(calls, ".autoencoder", "--until")
    assert called(calls, ".flow", "--until", "--rate 1e-3")


def test_the_card_adds_up_what_runs_came_to(tmp_path):
    line = {"step": 10, "seconds": 60.0, "samples": 640, "clips": 5, "loss": 0.5}
    (tmp_path / "flow.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "autoencoder.json").write_text('{"psnr": 30.0}')
    (tmp_path / "autoencoder.jsonl").write_text('{"step": 7}\n')
    (tmp_path / "stamps").write_text("0 start\n120 flow\n")
    first = card.measured(tmp_path)
    assert first == {
        "psnr": 30.0,
        "autoencoder_steps": 7,
        "clips": 5,
        "flow_steps": 10,
        "flow_seconds": 60.0,
        "samples": 640,
        "loss": 0.5,
        "seconds": 120.0,
    }
    (tmp_path / config.EARLIER).write_text(json.dumps(first))
    for name in ("autoencoder.json", "autoencoder.jsonl"):
        (tmp_path / name).unlink()
    (tmp_path / "flow.jsonl").write_text(json.dumps({**line, "loss": 0.25}) + "\n")
    both = card.measured(tmp_path)
    assert (both["psnr"], both["autoencoder_steps"], both["loss"]) == (30.0, 7, 0.25)
    assert (both["flow_steps"], both["seconds"]) == (20, 240.0)
    assert card.worded(both)["flow_minutes"] == "2.0"
    (tmp_path / "autoencoder.jsonl").write_text('{"step": 4}\n')
    assert card.measured(tmp_path)["autoencoder_steps"] == 7  # its training was not finished
    (tmp_path / "autoencoder.json").write_text('{"psnr": 31.0}')
    further = card.measured(tmp_path)
    assert (further["psnr"], further["autoencoder_steps"]) == (31.0, 11)
