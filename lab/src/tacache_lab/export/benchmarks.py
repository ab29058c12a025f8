"""The benchmarks: how a user's own copy of their prompts is read, and how their files are named."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.prompts import Sample
from tacache.storage.reading import parse_json

MAX_NAME_BYTES = 255  # bytes of a file's name
FLICKERING = "temporal_flickering"  # VBench asks for more clips of it: most are filtered out
FLICKERING_SAMPLES = 25


class ExportError(TACacheError):
    """A benchmark's prompts or results cannot be read, or do not fit what was exported."""


class PromptEntry(NamedTuple):
    """A prompt of a benchmark: what names its files, and what lies beside them."""

    prompt: str
    name: str
    samples: int
    metadata: str | None = None


class SampleFile(NamedTuple):
    """A sample that a benchmark wants, and its file below the export's folder.

    `trouble` says why it cannot be drawn, where that is so.
    """

    sample: Sample
    file: str
    trouble: str | None = None


class Benchmark(NamedTuple):
    """How one benchmark is read and laid out.

    `file(entry, place, i, number)` names the i-th sample of the entry at a place of the list, the
    number-th of all; `metadata(place)` the file of what lies beside an entry's samples.
    """

    title: str
    read: Callable[[Path], list[PromptEntry]]
    file: Callable[[PromptEntry, int, int, int], str]
    samples: int = 1
    clips: bool = False
    several: bool = False  # its prompts come in more than one file
    reserved: str = "/"  # what a prompt in a file's name must not hold
    metadata: Callable[[int], str] | None = None


def _geneval(path: Path) -> list[PromptEntry]:
    lines = [(i, line) for i, line in enumerate(_text(path).split("\n"), 1) if line.strip()]
    parsed = [(i, _parsed(line, f"{path}, line {i}"), line) for i, line in lines]
    return [
        PromptEntry(_field(row, "prompt", f"{path}, line {i}"), "", 4, line)
        for i, row, line in parsed
    ]


def _vbench(path: Path) -> list[PromptEntry]:
    """Read `VBench_full_info.json`, or one of its lists of prompts, one a line."""
    if path.suffix != ".json":
        return [PromptEntry(line, line, 5) for line in dict.fromkeys(_lines(path))]
    samples: dict[str, int] = {}
    for i, row in enumerate(_rows(path), 1):
        prompt = _field(row, "prompt_en", f"{path}, entry {i}")
        wanted = FLICKERING_SAMPLES if FLICKERING in (row.get("dimension") or ()) else 5
        samples[prompt] = max(wanted, samples.get(prompt, 0))  # some stand there twice
    return [PromptEntry(prompt, prompt, count) for prompt, count in samples.items()]


def _wise(path: Path) -> list[PromptEntry]:
    rows = [(row, f"{path}, entry {i}") for i, row in enumerate(_rows(path), 1)]
    return [
        PromptEntry(_field(row, "Prompt", where), str(_field(row, "prompt_id", where, int)), 1)
        for row, where in rows
    ]


def _compbench(path: Path) -> list[PromptEntry]:
    prompts = [line.split("\t")[0].strip() for line in _lines(path)]
    return [PromptEntry(prompt, prompt, 10) for prompt in prompts]


BENCHMARKS: dict[str, Benchmark] = {
    "geneval": Benchmark(
        "GenEval",
        _geneval,
        lambda entry, place, i, number: f"{place:05d}/samples/{i:04d}.png",
        metadata=lambda place: f"{place:05d}/metadata.jsonl",
    ),
    "vbench": Benchmark(
        "VBench", _vbench, lambda entry, place, i, number: f"{entry.name}-{i}.mp4", clips=True
    ),
    "wise": Benchmark(
        "WISE", _wise, lambda entry, place, i, number: f"{entry.name}.png", several=True
    ),
    "compbench": Benchmark(
        "T2I-CompBench",
        _compbench,
        lambda entry, place, i, number: f"samples/{entry.name}_{number:06d}.png",
        reserved="/_",  # its evaluators read the prompt up to the first underscore
    ),
}


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by name."""
    if name not in BENCHMARKS:
        raise ExportError(f"no benchmark {name!r}: choose from {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def read_entries(name: str, paths: Sequence[Path], count: int | None = None) -> list[PromptEntry]:
    """Return the prompts of a benchmark's own files, all or the first so many."""
    chosen = benchmark(name)
    if len(paths) != 1 and not (chosen.several and paths):
        raise ExportError(f"{chosen.title} takes one --metadata file, not {len(paths)}")
    entries = [entry for path in paths for entry in chosen.read(path)]
    if not entries:
        raise ExportError(f"there are no prompts in {', '.join(map(str, paths))}")
    return entries[:count]


def plan_samples(
    name: str, entries: Sequence[PromptEntry], *, samples: int | None = None, seed: int = 0
) -> list[SampleFile]:
    """Return every sample of a benchmark.

    A prompt's samples, wherever it stands, have seeds in a row.
    """
    chosen, drawn, files = benchmark(name), Counter[str](), list[SampleFile]()
    if chosen.several and samples not in (None, 1):
        raise ExportError(f"{chosen.title} judges one sample a prompt, not {samples}")
    for place, entry in enumerate(entries):
        for i in range(samples or entry.samples):
            file = chosen.file(entry, place, i, len(files))
            trouble = _trouble(entry.name, file, chosen)
            sample = Sample(entry.prompt, seed + drawn[entry.prompt])
            files.append(SampleFile(sample, file, trouble))
            drawn[entry.prompt] += 1
    twice = [
        file
        for file, times in Counter(sample_file.file for sample_file in files).items()
        if times > 1
    ]
    if twice:
        raise ExportError(f"two prompts of {chosen.title} want the file {twice[0]}: leave one out")
    return files


def _trouble(name: str, file: str, chosen: Benchmark) -> str | None:
    """Return why a sample's file cannot be named as its evaluator expects, if so."""
    if "\0" in file:
        return f"{chosen.title} names its file by the prompt, and no file name holds NUL"
    for letter in chosen.reserved:
        if letter in name:
            return f"{chosen.title} reads prompts off file names, which cannot hold {letter!r}"
    if len(file.rpartition("/")[2].encode()) > MAX_NAME_BYTES:
        return f"{chosen.title} names its file by the prompt, which is too long for a file system"
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"cannot read {path}: {error}") from error


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).split("\n") if line.strip()]


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text, finite=False)
    except ValueError as error:
        raise ExportError(f"{where} is not JSON: {error}") from error


def _rows(path: Path) -> list[Any]:
    rows = _parsed(_text(path), str(path))
    if not isinstance(rows, list):
        raise ExportError(f"{path} is not a list of prompts: give the benchmark's own file")
    return rows


def _field(row: Any, name: str, where: str, kind: type = str) -> Any:
    if not isinstance(row, dict) or not isinstance(row.get(name), kind):
        raise ExportError(f"{where} has no {name!r}: give the benchmark's own file")
    return row[name]
