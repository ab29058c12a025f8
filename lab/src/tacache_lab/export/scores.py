"""What the evaluators say of exported samples, as scores of our records.

A score named after a part, such as `geneval/counting`, is the evaluator's value of that one sample.
The benchmark's own name stands for its overall score, which weighs the parts: each sample has its
share of it, so that the mean over all samples is the figure the evaluator would print.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any, NamedTuple

from tacache.storage.reading import parse_json
from tacache.work.processes import Processes
from tacache_lab.bench.records import Record, RecordFile, Values
from tacache_lab.bench.runner import only_here
from tacache_lab.export import records_file
from tacache_lab.export.benchmarks import ExportError, benchmark

Scored = dict[str, Values]  # an exported file -> its scores


class ScorePart(NamedTuple):
    """One part of an overall score: its weight, and the range its values are taken from."""

    weight: float
    low: float = 0.0
    high: float = 1.0


# Ranges and weights of VBench's leaderboard, as its scripts/constant.py has them.
QUALITY = {
    "subject_consistency": ScorePart(1, 0.1462, 1.0),
    "background_consistency": ScorePart(1, 0.2615, 1.0),
    "temporal_flickering": ScorePart(1, 0.6293, 1.0),
    "motion_smoothness": ScorePart(1, 0.706, 0.9975),
    "aesthetic_quality": ScorePart(1),
    "imaging_quality": ScorePart(1),
    "dynamic_degree": ScorePart(0.5),
}
SEMANTIC = {
    "object_class": ScorePart(1),
    "multiple_objects": ScorePart(1),
    "human_action": ScorePart(1),
    "color": ScorePart(1),
    "spatial_relationship": ScorePart(1),
    "scene": ScorePart(1, 0.0, 0.8222),
    "appearance_style": ScorePart(1, 0.0009, 0.2855),
    "temporal_style": ScorePart(1, 0.0, 0.364),
    "overall_consistency": ScorePart(1, 0.0, 0.364),
}
QUALITY_SHARE = 0.8  # of the total
PERCENT = {"imaging_quality"}  # VBench divides the mean of its clips by 100
# WISE's categories end at these numbers: of its verified set, and of the first one
WISE_VERIFIED = {
    "culture": 400, "time": 520, "space": 640, "biology": 760, "physics": 880, "chemistry": 1000,
}  # fmt: skip
WISE_LEGACY = WISE_VERIFIED | {"time": 567, "space": 700, "biology": 800, "physics": 900}
WISCORE = {"consistency": 0.35, "realism": 0.1, "aesthetic_quality": 0.05}  # of scores up to 2
# the folder of T2I-CompBench's results -> categories whose score it is
COMPBENCH = {
    "annotation_blip": ("color", "shape", "texture"),
    "annotation_obj_detection_2d": ("spatial",),
    "annotation_obj_detection_3d": ("3d_spatial",),
    "annotation_num": ("numeracy",),
    "annotation_clip": ("non_spatial",),
    "annotation_3_in_1": ("complex",),
}


def add_scores(
    name: str, folder: Path, results: Sequence[Path], category: str = ""
) -> list[Record]:
    """Put the verdicts of result files into an export's records; all its records."""
    benchmark(name)
    file = RecordFile(records_file(folder))
    missing = f"there are no records in {file.path}: export first, to the same folder"
    if not file.is_there:
        raise ExportError(missing)
    with only_here(file, Processes(0, 1)):
        records = list(file.load().values())
        if not records:
            raise ExportError(missing)
        scored = _scored(name, folder, records, results, category)
        file.replace(scored)
    return scored


def _scored(
    name: str, folder: Path, records: Sequence[Record], results: Sequence[Path], category: str
) -> list[Record]:
    """Return the records with the verdicts of result files."""
    exported = {_below(record): record for record in records if record.status == "done"}
    by_file: Scored = {path: dict(record.scores) for path, record in exported.items()}
    for path in results:
        for target, scores in READERS[name](path, sorted(by_file), category).items():
            if target not in by_file:
                raise ExportError(f"{path} judges {target}, which was not exported to {folder}")
            by_file[target] |= scores
    for overall, parts in overall_parts(name, by_file).items():
        for target, share in shares(by_file, parts).items():
            by_file[target][overall] = share
    scored = {exported[path].key: dict(sorted(scores.items())) for path, scores in by_file.items()}
    return [
        record.model_copy(update={"scores": scored.get(record.key, record.scores)})
        for record in records
    ]


def overall_parts(name: str, by_file: Scored) -> dict[str, dict[str, ScorePart]]:
    """Return the overall scores that can be told from what there is, by their parts."""
    there = {part for scores in by_file.values() for part in scores}
    if name == "geneval":  # the mean over its tasks
        return {name: {part: ScorePart(1) for part in sorted(there) if part.startswith("geneval/")}}
    if name != "vbench":
        return {}
    quality = {f"vbench/{key}": part for key, part in QUALITY.items()}
    semantic = {f"vbench/{key}": part for key, part in SEMANTIC.items()}
    total = _scaled(quality, QUALITY_SHARE) | _scaled(semantic, 1 - QUALITY_SHARE)
    wanted = {"vbench/quality": quality, "vbench/semantic": semantic, "vbench": total}
    return {key: parts for key, parts in wanted.items() if parts.keys() <= there}


def shares(by_file: Scored, parts: Mapping[str, ScorePart]) -> dict[str, float]:
    """Return each sample's share of a weighted mean of parts.

    Their mean over samples is that score.
    """
    values = {
        path: {name: x for name, x in scores.items() if name in parts and isinstance(x, float)}
        for path, scores in by_file.items()
    }
    values = {path: scores for path, scores in values.items() if scores}
    times = Counter(name for scores in values.values() for name in scores)
    whole = sum(part.weight for part in parts.values())

    def share(name: str, x: float) -> float:
        weight, low, high = parts[name]
        return (x - low) / (high - low) * weight / whole * len(values) / times[name]

    return {path: sum(share(*score) for score in scores.items()) for path, scores in values.items()}


def _geneval(path: Path, exported: Sequence[str], category: str) -> Scored:
    """Read `evaluate_images.py`: a JSON line an image: its file, its task, whether it is right."""
    scored: Scored = {}
    for i, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            file, tag, correct = _fields(line, ("filename", "tag", "correct"), f"{path}, line {i}")
            tail = "/".join(PurePosixPath(str(file).replace("\\", "/")).parts[-3:])
            scored[tail] = {f"geneval/{tag}": float(bool(correct))}
    return scored


def _vbench(path: Path, exported: Sequence[str], category: str) -> Scored:
    """Read `*_eval_results.json`: for each dimension its score, and the clips it was made of."""
    scored: Scored = {}
    dimensions = _json(path)
    if not isinstance(dimensions, dict) or not all(map(_is_dimension, dimensions.values())):
        raise ExportError(f"{path} is no result of VBench: give its *_eval_results.json")
    for name, (_, clips) in dimensions.items():
        scale = 0.01 if name in PERCENT else 1.0
        for clip in clips:
            file, value = _fields(clip, ("video_path", "video_results"), f"{path}, {name}")
            scores = scored.setdefault(PurePosixPath(str(file).replace("\\", "/")).name, {})
            scores[f"vbench/{name}"] = _number(value, scale)
    return scored


def _wise(path: Path, exported: Sequence[str], category: str) -> Scored:
    """Read `*_scores_results.jsonl`: a line a prompt, with one score, or three of its first set."""
    scored: Scored = {}
    for i, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {i}"
        number = _whole(_fields(line, ("prompt_id",), where)[0], where)
        verified = "score" in parse_json(line, finite=False)
        weights = {"score": 1.0} if verified else WISCORE
        values = [_number(value) for value in _fields(line, tuple(weights), where)]
        value = _weighted(values, tuple(weights.values()))
        ends = WISE_VERIFIED if verified else WISE_LEGACY
        part = next((name for name, last in ends.items() if number <= last), "other")
        scored[f"{number}.png"] = {"wise": value, f"wise/{part}": value}
    return scored


def _compbench(path: Path, exported: Sequence[str], category: str) -> Scored:
    """Read `vqa_result.json`: an answer an image.

    Its number is the image's own, or its place in the folder.
    """
    evaluator, rows = path.parent.name, _json(path)
    if evaluator not in COMPBENCH or not isinstance(rows, list):
        raise ExportError(
            f"{path} is no result of T2I-CompBench: give the vqa_result.json of a folder such as "
            "annotation_blip"
        )
    category = category.removesuffix("_val")
    own = category in COMPBENCH[evaluator]
    name = f"compbench/{category}" + ("" if own else "/" + evaluator.removeprefix("annotation_"))
    pairs = [_fields(row, ("question_id", "answer"), str(path)) for row in rows]
    answers = {_whole(number, str(path)): {name: _number(answer)} for number, answer in pairs}
    by_number = {_number_of(file): file for file in exported}
    if not answers.keys() <= by_number.keys():  # some evaluators count what is in the folder
        by_number = dict(enumerate(by_number[number] for number in sorted(by_number)))
    return {by_number.get(n, f"sample {n}"): scores for n, scores in answers.items()}


READERS = {"geneval": _geneval, "vbench": _vbench, "wise": _wise, "compbench": _compbench}


def means(records: Iterable[Record]) -> dict[str, tuple[float, int]]:
    """Return the mean of every score and how many samples have it, by name."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.scores.items():
            if isinstance(value, float):
                values.setdefault(name, []).append(value)
    return {name: (fmean(numbers), len(numbers)) for name, numbers in sorted(values.items())}


def _below(record: Record) -> str:
    """Return a record's file as seen from the export's folder, whatever that was called once."""
    return "/".join(PurePosixPath(str(record.picture)).parts[1:])


def _number_of(file: str) -> int:
    return int(PurePosixPath(file).stem.rpartition("_")[2])


def _scaled(parts: Mapping[str, ScorePart], share: float) -> dict[str, ScorePart]:
    whole = sum(part.weight for part in parts.values())
    return {key: part._replace(weight=part.weight / whole * share) for key, part in parts.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"cannot read {path}: {error}") from error


def _json(path: Path) -> Any:
    try:
        return parse_json(_text(path), finite=False)
    except ValueError as error:
        raise ExportError(f"{path} is not JSON: {error}") from error


def _is_dimension(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)


def _fields(row: Any, names: Sequence[str], where: str) -> list[Any]:
    """Return these fields of an object, or of a line that holds one."""
    try:
        fields = parse_json(row, finite=False) if isinstance(row, str) else row
        return [fields[name] for name in names]
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{where}: expected an object with {', '.join(names)}") from error


def _whole(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ExportError(f"{where}: {value!r} is not the number of a sample") from error


def _weighted(values: Sequence[float | str], weights: Sequence[float]) -> float | str:
    """Return a weighted sum, or why there is none."""
    total = 0.0
    for value, weight in zip(values, weights, strict=True):
        if isinstance(value, str):
            return value
        total += value * weight
    return total


def _number(value: Any, scale: float = 1.0) -> float | str:
    try:
        number = float(value) * scale
    except (TypeError, ValueError):
        number = math.nan
    return number if math.isfinite(number) else "failed: it is not a number"
