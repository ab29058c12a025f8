"""Commands of `tacache`, run in this process."""

from pathlib import Path
from typing import Any

import pytest
from tests.tiny import PIPELINES
from typer.testing import CliRunner

from tacache.cli.command_line import app


def run(*arguments: object, env: dict[str, str] | None = None) -> Any:
    """Run a command and return its exit code and what it printed."""
    return CliRunner().invoke(app, [*map(str, arguments)], env=env, terminal_width=100)


def assert_one_line(result: Any, *parts: object) -> None:
    """Check an error of ours: exit code 2, one line on standard error, nothing else."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("tacache: ")
    for part in parts:
        assert str(part) in result.stderr


def our_line(result: Any) -> str:
    """Return our one line of an error among what the libraries log."""
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("tacache: ")]
    return line


def fail_at(monkeypatch: pytest.MonkeyPatch, host: type, prompt: str, error: Exception) -> None:
    """Let a kind of host raise an error where it draws this prompt, as when memory ends."""
    draw = host.draw  # type: ignore[attr-defined]

    def failing(self: Any, sample: Any, call: Any) -> Any:
        if sample.prompt == prompt:
            raise error
        return draw(self, sample, call)

    monkeypatch.setattr(host, "draw", failing)


def save_pipelines(root: Path, *names: str) -> Path:
    """Save tiny pipelines by their names below a folder, and return the folder."""
    for name in names:
        PIPELINES[name].build().save_pretrained(root / name)
    return root
