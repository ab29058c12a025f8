"""Where a distribution is not installed, whatever needs it names it."""

import pytest
from tests.cli.test_cli import assert_one_line, run
from typer.main import get_command

from tacache import models
from tacache.cli import command_line
from tacache.errors import HostError


@pytest.fixture
def alone(monkeypatch):
    """The library without the models."""
    monkeypatch.setattr(models, "shipped", dict)


@pytest.mark.parametrize("name", command_line.LAB_COMMANDS)
def test_a_command_of_the_lab_names_the_lab(name, capsys):
    group = get_command(command_line.app)
    del group.commands[name]
    with pytest.raises(SystemExit) as ended:
        group([name])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert "pip install" in line
    assert "tacache-lab" in line


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "words",
    [
        ("generate", "tiny-flux", "--prompt", "a fox"),
        ("calibrate", "tiny-flux"),
        ("fit", "tiny-flux"),
        ("serve", "tiny-flux", "--local"),
        ("studio", "tiny-flux"),
    ],
)
def test_a_name_of_a_small_model_names_the_models(words):
    assert_one_line(run(*words), "tiny-flux", "pip install tacache-models")


@pytest.mark.usefixtures("alone")
def test_loading_by_name_names_the_models():
    with pytest.raises(HostError, match="pip install tacache-models"):
        models.load("tiny-flux")
