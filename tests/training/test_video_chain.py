"""The scripts that run the whole training of the video model, with stand-ins for its stages."""

import os
import subprocess
from pathlib import Path

import pytest
from training.video import card

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
