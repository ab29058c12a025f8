"""Layouts and scores of the benchmarks, against the formats their repositories document."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacache.errors import TACacheError
from tacache.storage.origin import Origin
from tacache_lab.bench.records import Machine, Record, RecordFile, read_records
from tacache_lab.export import records_file
from tacache_lab.export.benchmarks import BENCHMARKS, ExportError, plan_samples, read_entries
from tacache_lab.export.scores import QUALITY, SEMANTIC, ScorePart, add_scores, means, shares

GENEVAL = [
    {"tag": "counting", "include": [{"class": "cup", "count": 2}], "prompt": "two cups"},
    {"tag": "colors", "include": [{"class": "bus", "color": "red"}], "prompt": "a red bus / é"},
]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def whole(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def samples_of(name: str, *paths: Path, count: int | None = None, **options: Any):
    return plan_samples(name, read_entries(name, paths, count), **options)


# --- layouts


def test_geneval_has_a_folder_a_prompt(tmp_path):
    entries = read_entries("geneval", [lines(tmp_path / "m.jsonl", GENEVAL)])
    assert [json.loads(entry.metadata) for entry in entries] == GENEVAL
    made = plan_samples("geneval", entries, seed=7)
    assert [one.file for one in made] == [
        f"0000{place}/samples/000{i}.png" for place in range(2) for i in range(4)
    ]
    assert [one.sample.seed for one in made] == [7, 8, 9, 10] * 2
    assert not any(one.trouble for one in made)  # its names do not hold the prompt


def test_vbench_names_clips_by_prompt_and_samples_more_for_flickering(tmp_path):
    rows = [
        {"prompt_en": "a still lake.", "dimension": ["temporal_flickering"]},
        {"prompt_en": "a dog runs", "dimension": ["scene"]},
        {"prompt_en": "a still lake.", "dimension": ["scene"]},
    ]
    made = samples_of("vbench", whole(tmp_path / "VBench_full_info.json", rows))
    assert [one.file for one in made[:2]] == ["a still lake.-0.mp4", "a still lake.-1.mp4"]
    assert [one.sample.prompt for one in made] == ["a still lake."] * 25 + ["a dog runs"] * 5
    assert len({(one.sample.prompt, one.sample.seed) for one in made}) == len(made)


def test_vbench_takes_its_lists_of_prompts_too(tmp_path):
    path = tmp_path / "all_dimension.txt"
    path.write_text("a dog runs\n\na dog runs\na cat\n")
    files = [one.file for one in samples_of("vbench", path, samples=1)]
    assert files == ["a dog runs-0.mp4", "a cat-0.mp4"]


def test_wise_names_pictures_by_number_over_several_files(tmp_path):
    paths = [
        whole(tmp_path / f"{i}.json", [{"Prompt": f"riddle {i}", "prompt_id": i, "Category": "x"}])
        for i in (1, 641)
    ]
    made = samples_of("wise", *paths)
    assert [(one.sample.prompt, one.file) for one in made] == [
        ("riddle 1", "1.png"),
        ("riddle 641", "641.png"),
    ]
    with pytest.raises(ExportError, match="judges one sample a prompt, not 2"):
        samples_of("wise", *paths, samples=2)


def test_compbench_counts_through_all_prompts(tmp_path):
    path = tmp_path / "color_val.txt"
    path.write_text("a green bench and a blue bowl\na red cup\tseen\n")
    made = samples_of("compbench", path)
    assert len(made) == 20
    assert made[0].file == "samples/a green bench and a blue bowl_000000.png"
    assert (made[19].file, made[19].sample.seed) == ("samples/a red cup_000019.png", 9)


def test_a_prompt_that_stands_twice_goes_on_with_its_seeds(tmp_path):
    made = samples_of("geneval", lines(tmp_path / "m.jsonl", [GENEVAL[0]] * 2), samples=2)
    assert [one.sample.seed for one in made] == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ['[{"prompt_en": "half a pair: \\ud800"}]', "[" * 100_000])
def test_what_no_file_could_hold_is_told(tmp_path, text):
    path = tmp_path / "info.json"
    path.write_text(text)
    with pytest.raises(ExportError, match=r"info\.json is not JSON"):
        samples_of("vbench", path)


@pytest.mark.parametrize(
    ("name", "prompt", "reason"),
    [
        ("vbench", "a cup and/or a plate", "cannot hold '/'"),
        ("compbench", "a cup and/or a plate", "cannot hold '/'"),
        ("compbench", "a snake_case sign", "cannot hold '_'"),
        ("compbench", "é" * 130, "too long"),
        ("vbench", "x" * 250, "too long"),
        ("vbench", "a cup\0", "no file name holds NUL"),
    ],
)
def test_what_no_file_can_be_named_by_is_told(tmp_path, name, prompt, reason):
    path = tmp_path / "prompts.txt"
    path.write_text(f"{prompt}\nfine\n")
    made = samples_of(name, path, samples=1)
    assert reason in made[0].trouble
    assert made[1].trouble is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("geneval", "no json\n", "line 1 is not JSON"),
        ("geneval", '{"text": "a"}\n', "line 1 has no 'prompt'"),
        ("geneval", "\n", "there are no prompts"),
        ("vbench", '{"a": 1}', "not a list of prompts"),
        ("vbench", '[{"prompt": "a"}]', "entry 1 has no 'prompt_en'"),
        ("wise", '[{"Prompt": "a", "prompt_id": "1"}]', "entry 1 has no 'prompt_id'"),
        ("wise", '[{"Prompt": "a", "prompt_id": 1}, {"Prompt": "b", "prompt_id": 1}]', "two prom"),
        ("genevil", "", "no benchmark 'genevil': choose from geneval, "),
    ],
)  # fmt: skip
def test_what_is_no_copy_of_the_benchmark_is_refused(tmp_path, name, content, message):
    path = tmp_path / "m.json"
    path.write_text(content)
    with pytest.raises(ExportError, match=message):
        samples_of(name, path)


def test_one_file_where_one_is_read(tmp_path):
    with pytest.raises(ExportError, match="GenEval takes one --metadata file, not 0"):
        read_entries("geneval", [])
    with pytest.raises(ExportError, match="T2I-CompBench takes one --metadata file, not 2"):
        read_entries("compbench", [tmp_path / "a.txt", tmp_path / "b.txt"])
    with pytest.raises(ExportError, match="cannot read"):
        read_entries("compbench", [tmp_path / "a.txt"])


# --- scores


def exported(folder: Path, samples: Any, failed: tuple[str, ...] = ()) -> Path:
    """The records of an export, as if these samples had been drawn."""
    records = []
    for one in samples:
        broken = one.file in failed
        fields = {"status": "failed", "reason": "no memory"} if broken else {"status": "done"}
        records.append(
            Record(
                method="full",
                evaluations=2,
                prompt=one.sample.prompt,
                seed=one.sample.seed,
                evaluated=(1.0, 0.5),
                seconds=1.0,
                picture=None if broken else f"{folder.name}/{one.file}",
                steps=2,
                fine=None,
                origin=Origin(),
                machine=Machine(device="cpu", versions={}),
                **fields,
            )
        )
    RecordFile(records_file(folder)).replace(records)
    return folder


def test_geneval_comes_out_as_its_own_summary(tmp_path):
    """Its overall score is the mean over tasks, whatever the number of images of a task."""
    rows = [GENEVAL[0], GENEVAL[0] | {"prompt": "two more"}, GENEVAL[1]]
    samples = samples_of("geneval", lines(tmp_path / "m.jsonl", rows), samples=2)
    folder = exported(tmp_path / "out", samples)
    correct = [True, False, True, True, False, True]
    results = [
        {"filename": f"/elsewhere/{one.file}", "tag": tag, "correct": right, "reason": ""}
        for one, tag, right in zip(samples, ["counting"] * 4 + ["colors"] * 2, correct, strict=True)
    ]
    add_scores("geneval", folder, [lines(tmp_path / "r.jsonl", results)])
    found = means(read_records(records_file(folder)))
    assert found == {
        "geneval": (pytest.approx((0.75 + 0.5) / 2), 6),
        "geneval/counting": (0.75, 4),
        "geneval/colors": (0.5, 2),
    }


def vbench_results(samples: Any, names: Any) -> dict[str, Any]:
    """Dimensions on every third clip, with values that differ."""
    found = {}
    for k, name in enumerate(names):
        clips = samples[k % 3 :: 3]
        scale = 100 if name == "imaging_quality" else 1
        values = [(i + 1) / (len(clips) + k + 2) for i in range(len(clips))]
        listed = [
            {"video_path": f"videos/{clip.file}", "video_results": value * scale}
            for clip, value in zip(clips, values, strict=True)
        ]
        found[name] = [sum(values) / len(values), listed]
    return found


def test_vbench_comes_out_as_its_own_final_score(tmp_path):
    """Dimensions are normalised, weighted, and quality counts four times as much as semantics."""
    path = tmp_path / "prompts.txt"
    path.write_text("a dog\na cat\n")
    samples = samples_of("vbench", path)
    folder = exported(tmp_path / "out", samples)
    results = vbench_results(samples, [*QUALITY, *SEMANTIC])
    files = []
    for i, part in enumerate((list(QUALITY), list(SEMANTIC))):
        content = {name: results[name] for name in part}
        files.append(whole(tmp_path / f"{i}_eval_results.json", content))
    add_scores("vbench", folder, files[:1])
    found = means(read_records(records_file(folder)))
    assert "vbench/quality" in found
    assert "vbench" not in found  # half of its dimensions are not there yet
    add_scores("vbench", folder, files[1:])
    found = means(read_records(records_file(folder)))

    def weighted(parts: dict[str, ScorePart]) -> float:
        normal = [(results[n][0] - p.low) / (p.high - p.low) * p.weight for n, p in parts.items()]
        return sum(normal) / sum(part.weight for part in parts.values())

    quality, semantic = weighted(QUALITY), weighted(SEMANTIC)
    assert found["vbench"][0] == pytest.approx((4 * quality + semantic) / 5)
    assert found["vbench/quality"][0] == pytest.approx(quality)
    assert found["vbench/semantic"][0] == pytest.approx(semantic)
    for name, (official, clips) in results.items():
        assert found[f"vbench/{name}"] == (pytest.approx(official), len(clips))


@pytest.mark.slow
@given(
    values=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.floats(-2, 2), max_size=3), min_size=1
    ).filter(lambda rows: all(any(name in row for row in rows) for name in "abc")),
    weights=st.tuples(*[st.floats(0.1, 3)] * 3),
)
def test_the_mean_of_shares_is_the_weighted_mean_of_parts(values, weights):
    parts = {n: ScorePart(w, -1.0, 3.0) for n, w in zip("abc", weights, strict=True)}
    found = shares({str(i): dict(row) for i, row in enumerate(values)}, parts)
    wanted = 0.0
    for name, part in parts.items():
        there = [row[name] for row in values if name in row]
        wanted += part.weight * (sum(there) / len(there) + 1) / 4
    assert len(found) == sum(bool(row) for row in values)
    assert sum(found.values()) / len(found) == pytest.approx(wanted / sum(weights))


def wise_export(tmp_path: Path, numbers: list[int]) -> Path:
    rows = [{"Prompt": f"riddle {i}", "prompt_id": i} for i in numbers]
    return exported(tmp_path / "out", samples_of("wise", whole(tmp_path / "w.json", rows)))


def test_wise_has_its_categories(tmp_path):
    folder = wise_export(tmp_path, [400, 401, 640, 641])
    rows = [
        {"prompt_id": i, "Subcategory": "x", "score": score}
        for i, score in ((400, 1.0), (401, 0.0), (640, 1.0), (641, 0.0))
    ]
    add_scores("wise", folder, [lines(tmp_path / "a.jsonl", rows)])
    assert means(read_records(records_file(folder))) == {
        "wise": (0.5, 4),
        "wise/culture": (1.0, 1),
        "wise/time": (0.0, 1),
        "wise/space": (1.0, 1),
        "wise/biology": (0.0, 1),
    }


def test_the_first_wise_weighs_three_scores(tmp_path):
    folder = wise_export(tmp_path, [567])
    row = {"prompt_id": 567, "consistency": 2, "realism": 1, "aesthetic_quality": 0}
    add_scores("wise", folder, [lines(tmp_path / "a.jsonl", [row])])
    found = means(read_records(records_file(folder)))
    assert found == {n: (pytest.approx((0.7 * 2 + 0.2) / 2), 1) for n in ("wise", "wise/time")}


def compbench_export(tmp_path: Path, failed: tuple[str, ...] = ()) -> Path:
    path = tmp_path / "color_val.txt"
    path.write_text("a red cup\na blue cup\n")
    return exported(tmp_path / "out", samples_of("compbench", path, samples=2), failed)


def compbench_results(tmp_path: Path, folder: str, answers: dict[int, Any]) -> Path:
    (tmp_path / folder).mkdir()
    rows = [{"question_id": i, "answer": answer} for i, answer in answers.items()]
    return whole(tmp_path / folder / "vqa_result.json", rows)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("annotation_blip", "compbench/color"), ("annotation_clip", "compbench/color/clip")],
)
def test_compbench_is_named_by_category(tmp_path, folder, name):
    results = compbench_results(tmp_path, folder, {0: "0.5", 1: "0.25", 2: 1.0, 3: "nan"})
    made = add_scores("compbench", compbench_export(tmp_path), [results], "color_val")
    assert [record.scores[name] for record in made] == [
        0.5, 0.25, 1.0, "failed: it is not a number",
    ]  # fmt: skip


@pytest.mark.parametrize("answers", [{0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.1, 2: 0.2, 3: 0.3}])
def test_compbench_counts_by_place_or_by_number(tmp_path, answers):
    """Where a sample is missing its evaluators differ: some number what is in the folder."""
    folder = compbench_export(tmp_path, failed=("samples/a red cup_000001.png",))
    results = compbench_results(tmp_path, "annotation_blip", answers)
    made = add_scores("compbench", folder, [results], "color_val")
    assert [record.scores.get("compbench/color") for record in made] == [0.1, None, 0.2, 0.3]


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("geneval", "r.jsonl", '{"filename": "a.png"}', "line 1: expected an object with filename"),
        ("geneval", "r.jsonl", "no json", "line 1: expected an object"),
        (
            "geneval",
            "r.jsonl",
            '{"filename": "9/samples/0.png", "tag": "x", "correct": true}',
            "judges 9/samples/0.png, which was not exported",
        ),
        ("vbench", "r.json", "[1]", "is no result of VBench"),
        ("vbench", "r.json", '{"scene": 0.5}', "is no result of VBench"),
        ("vbench", "r.json", "{", "is not JSON"),
        ("wise", "r.jsonl", '{"prompt_id": 1, "realism": 1}', "with consistency, realism"),
        ("compbench", "r.json", "[]", "is no result of T2I-CompBench"),
        ("wise", "r.jsonl", '{"prompt_id": "x", "score": 1}', "'x' is not the number of a sample"),
        (
            "compbench",
            "annotation_blip/vqa_result.json",
            '[{"question_id": "x", "answer": "1"}]',
            "'x' is not the number of a sample",
        ),
        ("wise", "missing.jsonl", None, "cannot read"),
    ],
)
def test_other_results_are_refused_and_nothing_is_changed(tmp_path, name, file, content, message):
    folder = wise_export(tmp_path, [1])
    before = records_file(folder).read_bytes()
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_text(content + "\n")
    with pytest.raises(ExportError, match=message):
        add_scores(name, folder, [path])
    assert records_file(folder).read_bytes() == before


def test_scores_need_an_export(tmp_path):
    with pytest.raises(ExportError, match="export first"):
        add_scores("geneval", tmp_path / "nowhere", [])


def test_an_export_may_be_renamed_before_it_is_scored(tmp_path):
    folder = wise_export(tmp_path, [1])
    moved = folder.with_name("moved")
    records_file(folder).rename(records_file(moved))
    results = tmp_path / "r.jsonl"
    results.write_text('{"prompt_id": 1, "score": 1}\n')
    assert add_scores("wise", moved, [results])[0].scores["wise"] == 1.0


@pytest.mark.parametrize("folder", [".", ".."])
def test_a_folder_has_a_name_that_its_records_take(folder):
    with pytest.raises(TACacheError, match=r"by its name, such as \.\./"):
        records_file(folder)


def test_a_line_ends_where_its_file_says(tmp_path):
    metadata = tmp_path / "m.jsonl"
    metadata.write_text('{"tag": "x", "prompt": "a\u2028cat"}\n', encoding="utf-8")
    assert [entry.prompt for entry in read_entries("geneval", [metadata])] == ["a\u2028cat"]


def test_every_benchmark_can_be_scored():
    from tacache_lab.export.scores import READERS

    assert READERS.keys() == BENCHMARKS.keys()
