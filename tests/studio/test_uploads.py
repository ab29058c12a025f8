import json

import pytest

from tacache.errors import TACacheError
from tacache.plan import make_plan
from tacache.studio.shelf import MAX_BYTES, profile_on, read_upload


def test_plans_and_profiles_are_told_apart(tiny_profile, tmp_path):
    plan = make_plan(tiny_profile, evaluations=4)
    assert read_upload(plan.save(tmp_path / "a.json")) == plan
    assert read_upload(tiny_profile.save(tmp_path / "b.json")) == tiny_profile


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2]", "neither a tacache-plan"),
        (b'{"format": "tacache-frontier"}', "neither a tacache-plan"),
        (b'{"format": ["tacache-plan"]}', "neither a tacache-plan"),
        (b'{"format": "tacache-plan", "version": 99}', "version 99"),
        (b'{"format": "tacache-plan", "version": 1, "rule": "tasu"}', "field"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (MAX_BYTES + 1), "more than 1 MiB"),
    ],
)
def test_a_malformed_file_is_a_sentence(tmp_path, content, sentence):
    file = tmp_path / "dropped.json"
    file.write_bytes(content)
    with pytest.raises(TACacheError, match=sentence) as caught:
        read_upload(file)
    assert "\n" not in str(caught.value)


def test_an_unknown_field_is_refused(tiny_profile, tmp_path):
    fields = {**make_plan(tiny_profile, evaluations=4).as_fields(), "__class__": "os.system"}
    file = tmp_path / "x.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(TACacheError, match="unknown field"):
        read_upload(file)


def test_a_profile_comes_to_the_grid_of_the_model(tiny_profile):
    half = tiny_profile.times[::2]
    assert profile_on(tiny_profile, half, tiny_profile.origin.model).times == half
    with pytest.raises(TACacheError, match="this is another"):
        profile_on(
            tiny_profile.model_copy(
                update={"origin": tiny_profile.origin.model_copy(update={"model": "one"})}
            ),
            half,
            "another",
        )
