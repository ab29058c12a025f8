"""Prompt files: one prompt a line, or JSON lines with a `prompt` field."""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from tacache.errors import HostError
from tacache.storage.reading import parse_json

# name -> file that ships with the package
BUILT_IN = {name: f"{name}.jsonl" for name in ("calibration", "calibration-video", "test")}


class Sample(NamedTuple):
    """A prompt with a seed; the prompt is None where a call brings embeddings instead."""

    prompt: str | None
    seed: int

    @property
    def text(self) -> str:
        """Return the prompt as files hold it: empty where there is none."""
        return self.prompt or ""

    def __str__(self) -> str:
        return (
            f"seed {self.seed}" if self.prompt is None else f"{self.prompt!r} with seed {self.seed}"
        )


def read_prompts(source: str | Path) -> list[str]:
    """Return the prompts of a text or JSONL file, or of a set that ships, by its name."""
    path = Path(source)
    if str(source) in BUILT_IN and not path.is_file():
        text = (files("tacache") / "data" / BUILT_IN[str(source)]).read_text(encoding="utf-8")
        return _parsed(text, jsonl=True, name=str(source))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"cannot read prompts from {path}: {error}") from error
    jsonl = path.suffix.lower() in (".json", ".jsonl") or _is_object(text.strip().split("\n")[0])
    return _parsed(text, jsonl=jsonl, name=str(path))


def as_prompts(prompts: str | Path | Iterable[str]) -> list[str]:
    """Return prompts given as a list or as a file's name."""
    texts = read_prompts(prompts) if isinstance(prompts, str | Path) else list(prompts)
    if not texts:
        raise HostError("there is no prompt: give at least one")
    return texts


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse a seed that is given twice: it would make two samples of one."""
    twice = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
    if twice:
        raise HostError(f"seed {twice[0]} is given twice: the same sample would count as two")


def samples_of(prompts: Sequence[str] | None, seeds: Sequence[int] | None = None) -> list[Sample]:
    """Return every prompt with every seed ([0] by default); without prompts, one sample a seed."""
    chosen = list(seeds) if seeds is not None else [0]
    check_seeds(chosen)
    texts = prompts if prompts is not None else [None]
    return [Sample(text, seed) for text in texts for seed in chosen]


def fingerprint(prompts: Sequence[str]) -> str:
    """Return a hash of the prompts, to tell whether two runs used the same."""
    return hashlib.sha256("\n".join(prompts).encode()).hexdigest()


def _parsed(text: str, *, jsonl: bool, name: str) -> list[str]:
    lines = [(i, line.strip()) for i, line in enumerate(text.split("\n"), start=1)]
    lines = [(i, line) for i, line in lines if line and not line.startswith("#")]
    if not lines:
        raise HostError(f"{name} has no prompts: one a line, or JSON lines with a 'prompt' field")
    return [_prompt_of(line, f"{name}, line {i}") if jsonl else line for i, line in lines]


def _is_object(line: str) -> bool:
    """Return whether a line is a JSON object; `{red|blue} ball` is a prompt."""
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def _prompt_of(line: str, where: str) -> str:
    try:
        prompt = parse_json(line)["prompt"]
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(f'{where}: expected {{"prompt": "..."}}, found {line[:60]!r}') from error
    if not isinstance(prompt, str):
        raise HostError(f"{where}: the prompt is not a text but {prompt!r}")
    return prompt
