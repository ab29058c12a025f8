"""`tacache serve`: what it refuses before a model is loaded, and one server from start to end."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi")

from tacache.cli.command_line import app
from tacache.cli.serve_command import KEYS, AccessOptions


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["serve", "tiny-flux", *arguments])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_a_model_that_is_no_pipeline_is_refused():
    result = CliRunner().invoke(app, ["serve", "bagel", "--local"])
    assert result.exit_code == 2
    assert "a server runs pipelines of diffusers" in result.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "gpu.example"])
def test_other_machines_need_a_key(host):
    assert "--api-key" in refused("--local", "--host", host)


def test_an_address_that_is_taken_is_told_before_a_model_is_loaded():
    from tacache.serving.http_server import bound

    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused("--local", "--port", port)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--local", "--replicas", "2"], "--local"),
        (["--local", "--speedup", "0.5"], "speedup"),
        (["--local", "--speeedup", "4"], "--speeedup"),
        (["--local", "--like-steps", "0"], "like_steps"),
        (["--local", "--speedup", "4", "--min-psnr", "35"], "not speedup and min_psnr"),
        (["--local", "--port", "70000"], "--port"),
    ],
)
def test_a_wrong_option_is_named(arguments, word):
    assert word in refused(*arguments)


def test_keys_come_from_the_option_and_the_environment(monkeypatch):
    monkeypatch.setenv(KEYS, "two, three,,two")
    assert AccessOptions(api_key=["one"]).keys() == ("one", "two", "three")


@pytest.mark.slow
def test_a_server_answers_and_finishes_when_it_is_told_to_stop():
    command = [sys.executable, "-m", "tacache", "serve", "tiny-flux", "--local", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--steps", "12"], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        address = re.search(r"http://\S+", server.stdout.readline()).group()
        body = json.dumps({"prompt": "a red apple", "evaluations": 3}).encode()
        asked = urllib.request.Request(
            f"{address}/v1/images/generations", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=300) as answer:
            assert json.load(answer)["data"][0]["evaluations"] == 3
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    finally:
        server.kill()
        server.wait()
