"""Prompt files, and the sets that ship with the package."""

import json
from collections import Counter
from importlib.resources import files
from itertools import combinations

import pytest
from tests.tiny import PIPELINES

from tacache import HostError
from tacache.models import own_prompts
from tacache.prompts import BUILT_IN, as_prompts, fingerprint, read_prompts

SIZES = {"calibration": 60, "calibration-video": 30, "test": 30}
CATEGORIES = {"people", "animals", "objects", "scenes", "text", "counting", "colours",
              "spatial relations", "styles", "motion"}  # fmt: skip
PROMPTS = ["a red fox in the snow", "two blue birds", 'a sign that says "été"']


def categories(name: str) -> Counter[str]:
    text = (files("tacache") / "data" / f"{name}.jsonl").read_text(encoding="utf-8")
    return Counter(json.loads(line)["category"] for line in text.splitlines())


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_sets_that_ship_are_balanced(name):
    counts = categories(name)
    assert counts.keys() == CATEGORIES
    assert len(set(counts.values())) == 1
    prompts = read_prompts(name)
    assert len(prompts) == counts.total() == SIZES[name]
    assert len({prompt.casefold() for prompt in prompts}) == len(prompts)
    assert all(prompt == prompt.strip() != "" for prompt in prompts)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_first_prompts_of_a_set_are_balanced_too(name):
    """A calibration takes the first few: no category comes again before all have come."""
    text = (files("tacache") / "data" / f"{name}.jsonl").read_text(encoding="utf-8")
    order = [json.loads(line)["category"] for line in text.splitlines()]
    for start in range(0, len(order), len(CATEGORIES)):
        assert set(order[start : start + len(CATEGORIES)]) == CATEGORIES


@pytest.mark.parametrize("pair", list(combinations(BUILT_IN, 2)))
def test_no_two_sets_share_a_prompt(pair):
    one, other = ({prompt.casefold() for prompt in read_prompts(name)} for name in pair)
    assert not one & other


def test_a_file_named_like_a_set_is_meant_where_it_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(read_prompts("test")) > 1
    (tmp_path / "test").write_text("only this\n")
    assert read_prompts("test") == ["only this"]


def test_a_folder_named_like_a_set_is_not_meant(tmp_path, monkeypatch):
    """Many a project has a folder named test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test").mkdir()
    assert len(read_prompts("test")) > 1


def test_text_files_have_a_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("# a comment\n\n" + "\r\n".join(f"  {p} " for p in PROMPTS), encoding="utf-8")
    assert read_prompts(path) == read_prompts(str(path)) == PROMPTS


@pytest.mark.parametrize("suffix", [".jsonl", ".JSONL"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_lines_have_a_prompt_field(tmp_path, suffix, ascii_only):
    path = tmp_path / f"prompts{suffix}"
    lines = [json.dumps({"prompt": p, "seed": 1}, ensure_ascii=ascii_only) for p in PROMPTS]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_prompts(path) == PROMPTS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: expected"),
        ('{"text": "a fox"}', "line 2: expected"),
        ('["a fox"]', "line 2: expected"),
        ('"a fox"', "line 2: expected"),
        ('{"prompt": 3}', "line 2: the prompt is not a text"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a fox"}}\n{line}\n')
    with pytest.raises(HostError, match=message):
        read_prompts(path)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
@pytest.mark.parametrize("text", ["", "\n \n", "# only a comment\n"])
def test_an_empty_file_is_an_error(tmp_path, suffix, text):
    path = tmp_path / f"prompts{suffix}"
    path.write_text(text)
    with pytest.raises(HostError, match="has no prompts"):
        read_prompts(path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(HostError, match="cannot read prompts"):
        read_prompts(tmp_path / "missing.txt")
    with pytest.raises(HostError, match="cannot read prompts"):
        read_prompts(tmp_path)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HostError, match="cannot read prompts"):
        read_prompts(tmp_path / "bytes.txt")


def test_lists_are_taken_as_they_are(tmp_path):
    assert as_prompts(iter(PROMPTS)) == PROMPTS
    assert as_prompts("test") == read_prompts("test")
    with pytest.raises(HostError, match="no prompt"):
        as_prompts([])


def test_the_fingerprint_tells_prompts_apart():
    assert fingerprint(PROMPTS) == fingerprint(list(PROMPTS))
    others = (PROMPTS[::-1], PROMPTS[:2], [*PROMPTS, "one more"], [p.upper() for p in PROMPTS])
    assert fingerprint(PROMPTS) not in {fingerprint(other) for other in others}


@pytest.mark.parametrize(
    ("name", "wanted"), [("flux", "calibration"), ("wan", "calibration-video")]
)
def test_the_default_set_is_that_of_the_models_kind(tmp_path, name, wanted):
    """Told by the pipeline's class before anything is loaded."""
    kind = type(PIPELINES[name].build()).__name__
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": kind}))
    assert own_prompts(str(tmp_path), "calibration") == wanted
    assert own_prompts(str(tmp_path), "test") == "test"


@pytest.mark.parametrize("content", [None, "{", '{"_class_name": ["mine", "My"]}', "{}"])
def test_a_model_that_cannot_be_told_has_the_set_for_pictures(tmp_path, content):
    if content is not None:
        (tmp_path / "model_index.json").write_text(content)
    assert own_prompts(str(tmp_path), "calibration") == "calibration"


def test_a_file_is_taken_for_any_model(tmp_path):
    (tmp_path / "calibration").write_text("only this\n")
    assert own_prompts("tiny-flux", str(tmp_path / "calibration")) == str(tmp_path / "calibration")


@pytest.mark.parametrize("name", ["p.json", "p.txt"])
def test_lines_of_json_are_read_as_such_whatever_the_file_is_called(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"prompt": "a red apple"}\n')
    assert read_prompts(path) == ["a red apple"]
    path.with_suffix(".txt").write_text("{red|blue} ball\n")
    assert read_prompts(path.with_suffix(".txt")) == ["{red|blue} ball"]
    path.write_text("{}\n")
    with pytest.raises(HostError, match="line 1: expected"):
        read_prompts(path)


def test_marks_of_editors_and_odd_line_ends_are_no_prompts(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeff# a comment\r\na fox\r\n".encode())
    assert read_prompts(path) == ["a fox"]
    path = tmp_path / "p.jsonl"
    path.write_bytes('\ufeff{"prompt": "a\u2028fox"}\n'.encode())
    assert read_prompts(path) == ["a\u2028fox"]


@pytest.mark.parametrize("line", ['{"prompt": "half a pair: \\ud800"}', "[" * 100_000])
def test_what_no_file_could_hold_is_no_prompt(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a cup"}\n' + line + "\n")
    with pytest.raises(HostError, match="line 2: expected"):
        read_prompts(path)
