"""`tacache studio`: what is refused before a model is loaded, and that the page opens."""

import sys
from contextlib import contextmanager
from functools import partial

import pytest
from tests import command_line
from tests.tiny import PIPELINES

from tacache.cli import named_models
from tacache.diffusers.pipeline import PipelineHost
from tacache.studio import server

run = partial(command_line.run, "studio")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 opens the page to others: give --auth"),
        (["--auth", "me"], "--auth takes USER:PASSWORD"),
        (["bagel"], "the studio shows pipelines of diffusers"),
        (["tiny-flax"], "meant tiny-flux?"),
        (["--port", "70000"], "65535"),
        (["--shares"], "No such option"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.fixture
def shown(monkeypatch):
    """What would be served, in place of a page; nobody waits for it."""
    seen = []

    @contextmanager
    def serving(model, shelf, opening):
        seen.append((model, shelf, opening))
        yield "http://127.0.0.1:1/"
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serving", serving)
    monkeypatch.setattr("time.sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt()))
    tiny = PIPELINES["flux"]
    monkeypatch.setattr(named_models, "load", lambda model, asked: PipelineHost(tiny.build()))
    return seen


SMALL = ["./tiny", "--steps", 6, "--height", 32, "--width", 32, "--call", "max_sequence_length=32"]


def test_it_says_where_the_page_is_and_ends_on_ctrl_c(shown, tmp_path):
    result = run(*SMALL, "--port", 1, "--store", tmp_path)
    assert "The studio is open at http://127.0.0.1:1/" in result.output
    assert result.exit_code == 130
    ((model, _, opening),) = shown
    assert model.steps == 6
    assert opening == ("127.0.0.1", 1, None)


def test_the_password_may_stand_in_the_environment(shown):
    run(*SMALL, "--host", "0.0.0.0", env={"TACACHE_STUDIO_AUTH": "me:secret"})
    ((_, _, opening),) = shown
    assert opening.auth == ("me", "secret")


def test_without_gradio_the_error_names_the_extra(shown, monkeypatch):
    @contextmanager
    def serving(model, shelf, opening):
        import gradio

        yield gradio

    monkeypatch.setattr(server, "serving", serving)
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = run(*SMALL)
    assert result.exit_code == 2
    assert "pip install 'tacache[studio]'" in result.output
