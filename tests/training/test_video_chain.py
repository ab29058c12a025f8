"""The scripts that run the whole training of the video model, with stand-ins for its stages."""

import json
import os
import subprocess
from pathlib import Path

from training.video import card, config

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


def test_a_stage_that_breaks_is_run_again_without_compilation(tmp_path):
    code, end, calls = run_chain(tmp_path, "*no-compile*")
    assert (code, end, len(calls)) == (0, "done", 5)
    code, end, calls = run_chain(tmp_path, "*video.autoencoder*")
    assert (code, end) == (1, "failed: autoencoder")
    again = called(calls, ".autoencoder")[-2:]
    assert ["--no-compile" in call for call in again] == [False, True]


def test_a_flow_that_breaks_is_exported_from_its_last_weights(tmp_path):
    code, end, calls = run_chain(tmp_path, "*video.flow*")
    assert (code, end) == (1, "failed: flow")
    assert not called(calls, ".export")
    assert len(called(calls, ".flow", "--no-compile")) == 2  # the rehearsal had failed
    (tmp_path / "w" / "transformer").mkdir()
    code, end, calls = run_chain(tmp_path, "*video.flow*")
    assert (code, end) == (0, "done")
    assert called(calls, ".export")


def test_a_chain_without_any_autoencoder_is_refused(tmp_path):
    command = ["bash", "training/video/chain.sh", str(tmp_path), "5"]
    environment = {**os.environ, "AUTOENCODER": "0"}
    made = subprocess.run(
        command, cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 2
    assert "give START=FOLDER as well" in made.stderr


def test_a_corpus_that_breaks_is_made_by_one_worker(tmp_path):
    code, end, calls = run_chain(tmp_path, "*360000*")
    assert (code, end) == (0, "done")
    assert len(called(calls, ".corpus", "--workers 1")) == 1


def test_the_chain_goes_on_from_an_exported_model(tmp_path):
    code, end, calls = run_chain(tmp_path, "nothing", START="model")
    assert (code, end, len(calls)) == (0, "done", 3)
    assert called(calls, ".corpus", "--start model", "--seed 3")
    assert called(calls, ".flow", "--start model", "--rate 1e-3")
    (tmp_path / "calls").unlink()
    code, end, calls = run_chain(tmp_path, "nothing", START="model", AUTOENCODER="9")
    assert (code, end, len(calls)) == (0, "done", 5)
    assert called(calls, ".autoencoder", "--start model", "--seconds 9", "--seed 4")


def collect(work: Path, out: Path) -> set[str]:
    """What a call of the script leaves in the folder."""
    out.mkdir()
    script = FOLDER / "collect.sh"
    subprocess.run(["sh", script, work, out, "0"], check=True, timeout=60, capture_output=True)
    return {file.name for file in out.iterdir()}


def test_collecting_brings_the_model_or_what_there_is_of_it(tmp_path):
    work = tmp_path / "w"
    for part in ("vae", "transformer", "logs", "tiny-wan"):
        (work / part).mkdir(parents=True)
    (work / "logs" / "flow.log").write_text("step 1\n")
    (work / "stamps").write_text("0 start\n")
    assert collect(work, tmp_path / "early") == {"parts.tar.aa", "results.txz"}
    (work / "tiny-wan" / "README.md").write_text("card")
    (work / "sheet.gif").write_bytes(b"GIF")
    (work / "stamps").write_text("0 start\n9 broken: flow\n20 done\n")
    brought = {"tiny-wan.tar.aa", "results.txz", "clips.tar.aa"}
    assert collect(work, tmp_path / "late") == brought
    listed = subprocess.check_output(["tar", "tf", tmp_path / "late" / "tiny-wan.tar.aa"])
    assert b"tiny-wan/README.md" in listed
    listed = subprocess.check_output(["tar", "tf", tmp_path / "early" / "parts.tar.aa"])
    assert {b"vae/", b"transformer/", b"stamps"} <= set(listed.split())


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
