import json
import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import noise_of, profile_from, rotating

from tacache import Origin, Plan, Profile, ProfileError, calibrate, time_grid

TIMES = (1.0, 0.5, 0.25, 0.0)
numbers = st.floats(-100, 100, allow_nan=False, allow_subnormal=False)
positives = st.floats(0, 100, allow_nan=False, allow_subnormal=False)


def of_samples(k, d, **fields):
    return Profile.from_samples(TIMES, k, d, **fields)


def assert_same_statistics(found, expected, scale):
    for name in ("magnitude", "magnitude_std", "direction", "direction_std"):
        ours, theirs = np.array(getattr(found, name)), np.array(getattr(expected, name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12 * scale)


# --- what it holds


def test_means_and_deviations_by_hand():
    made = of_samples([[1.0, 3.0], [2.0, 2.0]], [[0.0, 2.0], [1.0, 4.0]])
    assert made.magnitude == (2.0, 2.0, 2.0)
    assert made.direction == (1.0, 2.5, 2.5)
    assert made.magnitude_std == pytest.approx((2**0.5, 0.0, 0.0))
    assert made.direction_std == pytest.approx((2**0.5, 4.5**0.5, 4.5**0.5))
    assert (made.samples, made.steps, made.times) == (2, 3, TIMES)


def test_one_sample_has_no_spread():
    made = of_samples([[1.0], [2.0]], [[0.5], [0.25]])
    assert made.magnitude == (1.0, 2.0, 2.0)
    assert made.magnitude_std == made.direction_std == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("k", "d"),
    [
        ([[1.0]], [[1.0]]),
        ([[1.0], [1.0]], [[1.0, 2.0], [1.0, 2.0]]),
        ([[], []], [[], []]),
        ([1.0, 2.0], [1.0, 2.0]),
    ],
)
def test_rows_that_do_not_fit_the_grid_are_an_error(k, d):
    with pytest.raises(ProfileError, match="3 steps need 2 rows of magnitude and of direction"):
        of_samples(k, d)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_name_step_and_sample(bad):
    message = "not finite at step 1 of sample 2: .* zero, infinite or not a number; check"
    with pytest.raises(ProfileError, match=message):
        of_samples([[1.0] * 3, [1.0] * 3], [[1.0] * 3, [1.0, 1.0, bad]])


def test_a_profile_needs_two_steps():
    with pytest.raises(ProfileError, match="at least two steps"):
        Profile.from_samples([1.0, 0.0], [], [])


def test_profiles_cannot_be_changed():
    made = of_samples([[1.0], [2.0]], [[0.5], [0.25]])
    with pytest.raises(ValueError, match="frozen"):
        made.samples = 3


# --- merge


@st.composite
def grouped_samples(draw):
    samples = draw(st.integers(1, 12))
    rows = st.lists(numbers, min_size=samples, max_size=samples)
    rows_d = st.lists(positives, min_size=samples, max_size=samples)
    k, d = (draw(st.tuples(*[row] * 2)) for row in (rows, rows_d))
    cuts = draw(st.sets(st.integers(1, samples - 1), max_size=4)) if samples > 1 else set()
    return np.array(k), np.array(d), [0, *sorted(cuts), samples]


@given(grouped_samples())
def test_merging_equals_one_big_calibration(drawn):
    k, d, cuts = drawn
    parts = [of_samples(k[:, a:b], d[:, a:b]) for a, b in pairwise(cuts)]
    whole = of_samples(k, d)
    scale = max(np.abs(k).max(), d.max())
    for order in (parts, parts[::-1]):
        merged = Profile.merge(order)
        assert merged.samples == whole.samples
        assert_same_statistics(merged, whole, scale)


@given(grouped_samples())
def test_merging_in_groups_is_merging_at_once(drawn):
    k, d, _ = drawn
    parts = [of_samples(k[:, i : i + 1], d[:, i : i + 1]) for i in range(k.shape[1])]
    nested = parts[0]
    for part in parts[1:]:
        nested = Profile.merge([part, nested])
    assert_same_statistics(nested, Profile.merge(iter(parts)), max(np.abs(k).max(), d.max()))


def test_merging_one_profile_gives_it_back(profile):
    assert Profile.merge([profile]) == profile


def test_merging_nothing_is_an_error():
    with pytest.raises(ProfileError, match="no profile to merge: give at least one"):
        Profile.merge([])


def test_different_grids_do_not_merge():
    a, b = profile_from([1.0] * 3, [1.0] * 3), profile_from([1.0] * 4, [1.0] * 4)
    with pytest.raises(ProfileError, match=r"different grids .*3 and 4 steps.*: resample one"):
        Profile.merge([a, b])


def test_different_hosts_do_not_merge():
    a, b = (of_samples([[1], [1]], [[1], [1]], origin=Origin(dtype=name)) for name in "ab")
    with pytest.raises(ProfileError, match=r"different hosts .* dtype \(a and b\)"):
        Profile.merge([a, b])


def test_different_prompts_merge_and_are_not_named():
    hosts = [Origin(model="m", prompts_sha256=name) for name in "abc"]
    merged = Profile.merge(of_samples([[1], [1]], [[1], [1]], origin=host) for host in hosts)
    assert merged.origin == Origin(model="m")
    assert merged.samples == 3


def test_the_change_into_a_new_part_is_not_the_old_parts():
    k = d = [[1.0, 3.0], [50.0, 70.0], [5.0, 5.0]]
    times = (1.0, 0.75, 0.5, 0.25, 0.0)
    made = Profile.from_samples(times, k, d, breaks=[0.6])  # step 2 starts the new part
    assert made.magnitude == (2.0, 2.0, 5.0, 5.0)
    assert made.direction == (2.0, 2.0, 5.0, 5.0)
    assert made.magnitude_std == pytest.approx((2**0.5, 2**0.5, 0.0, 0.0))
    assert made.breaks == (0.6,)
    assert k[1] == [50.0, 70.0]
    assert Profile.from_json(made.to_json()) == made
    assert Profile.merge([made, made]).breaks == (0.6,)
    assert made.resample([1.0, 0.5, 0.3, 0.0]).breaks == (0.6,)


def test_a_new_part_after_one_step_keeps_that_steps_numbers():
    # There is nothing else to put there, and step 1 is an anchor whatever they say.
    made = of_samples([[9.0], [2.0]], [[9.0], [0.5]], breaks=[0.9])
    assert (made.magnitude, made.direction) == ((9.0, 2.0, 2.0), (9.0, 0.5, 0.5))


def test_profiles_of_different_breaks_do_not_merge():
    a, b = (of_samples([[1], [1]], [[1], [1]], breaks=at) for at in ([], [0.4]))
    with pytest.raises(ProfileError, match=r"break at \(\) and \(0\.4,\)"):
        Profile.merge([a, b])


# --- resample


def test_resampling_on_the_same_grid_is_the_identity(profile):
    assert profile.resample(list(profile.times)) == profile


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [30, 60, 97])
def test_a_constant_rate_is_carried_to_another_step_count(steps, shift):
    flow = rotating(rate=1.5, growth=-0.4)
    measured = calibrate(flow, noise_of(1), time_grid(60, shift=2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        carried = measured.resample(time_grid(steps, shift))
    direct = calibrate(flow, noise_of(1), time_grid(steps, shift))
    # k and d / dt depend a little on the step's length: k by rate^2 dt / 2.
    np.testing.assert_allclose(carried.magnitude, direct.magnitude, rtol=0, atol=0.12)
    np.testing.assert_allclose(carried.direction, direct.direction, rtol=0.05)
    assert carried.times == direct.times
    assert carried.samples == measured.samples


def test_resampling_by_hand():
    measured = profile_from([1.0, 3.0, 5.0, 5.0], [0.1, 0.2, 0.4, 0.4])
    carried = measured.resample([1.0, 0.875, 0.5, 0.0])
    # Steps start at 1, .75 and .5 (the last measured one); d per unit time is .4, .8, 1.6.
    assert carried.magnitude == pytest.approx((1.0, 2.0, 2.0))
    assert carried.direction == pytest.approx((0.4 * 0.125, 0.6 * 0.375, 0.6 * 0.375))


def test_spreads_are_carried_like_their_means():
    measured = Profile(
        times=(1.0, 0.75, 0.5, 0.25, 0.0),
        samples=2,
        magnitude=(0.0,) * 4,
        magnitude_std=(1.0, 3.0, 5.0, 5.0),
        direction=(0.0,) * 4,
        direction_std=(0.1, 0.2, 0.4, 0.4),
        origin=Origin(model="m"),
    )
    carried = measured.resample([1.0, 0.875, 0.5, 0.0])
    assert carried.magnitude_std == pytest.approx((1.0, 2.0, 2.0))
    assert carried.direction_std == pytest.approx((0.05, 0.225, 0.225))
    assert (carried.origin, carried.samples) == (measured.origin, 2)


@pytest.mark.parametrize(
    ("times", "said"),
    [([1.2, 0.5, 0.0], "from 1.2 to 0"), ([1.0, 0.5, -0.1], "from 1 to -0.1")],
)
def test_leaving_the_measured_range_warns_the_caller(times, said):
    measured = profile_from([1.0] * 4, [0.1] * 4)
    with pytest.warns(UserWarning, match=f"grid {said} leaves the measured range") as caught:
        measured.resample(times)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("times", [[1.0, 0.4, 0.0], [0.9, 0.5, 0.3], [1.0 + 1e-4, 0.5, 0.0]])
def test_staying_in_the_measured_range_does_not_warn(times):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile_from([1.0] * 4, [0.1] * 4).resample(times)


def test_resampling_to_one_step_is_an_error(profile):
    with pytest.raises(ProfileError, match="at least two steps"):
        profile.resample([1.0, 0.0])


# --- files


@st.composite
def profiles(draw):
    steps = draw(st.integers(2, 6))
    finite = st.floats(-1e6, 1e6)
    times = draw(st.lists(finite, min_size=steps + 1, max_size=steps + 1, unique=True))
    many = st.lists(finite, min_size=steps, max_size=steps).map(tuple)
    many_d = st.lists(finite.map(abs), min_size=steps, max_size=steps).map(tuple)
    text = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))
    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**64), 2**64), finite, text),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    )
    return Profile(
        times=tuple(sorted(times, reverse=True)),
        samples=draw(st.integers(1, 10**6)),
        magnitude=draw(many),
        magnitude_std=draw(many_d),
        direction=draw(many_d),
        direction_std=draw(many_d),
        origin=Origin(
            model=draw(text),
            latent_shape=draw(st.one_of(st.none(), st.tuples(st.integers(1, 9)))),
            call=draw(st.one_of(st.none(), st.dictionaries(st.text("ab_"), values, max_size=3))),
        ),
    )


@pytest.mark.slow
@given(profiles())
def test_saving_and_loading_is_the_identity(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("saved") / "x.profile.json"
    assert made.save(path) == path
    loaded = Profile.load(path)
    assert loaded == made
    assert loaded.to_json() == made.to_json()


def test_the_file_is_json_with_one_field_a_line(profile):
    parsed = json.loads(profile.to_json())
    assert (parsed["format"], parsed["version"]) == ("tacache-profile", 1)
    assert parsed["direction"] == list(profile.direction)
    assert len(profile.to_json().splitlines()) == len(parsed) + 2


def changed(**fields):
    return {**json.loads(profile_from([1.0] * 3, [0.5] * 3).to_json()), **fields}


BAD_CONTENT = {
    "wrong length": (changed(direction=[1.0, 2.0]), ["'direction' has 2 numbers", "3 steps"]),
    "NaN": (changed(magnitude=[1.0, math.nan, 1.0]), ["'magnitude.1'", "finite"]),
    "infinity": (changed(magnitude_std=[1.0, math.inf, 1.0]), ["'magnitude_std.1'", "finite"]),
    "negative spread": (
        changed(direction_std=[0, -1, 0]),
        ["'direction_std' has a negative", "-1"],
    ),
    "negative direction": (changed(direction=[0, -0.5, 0]), ["'direction' has a negative", "-0.5"]),
    "unknown field": (changed(magnitud=[1.0]), ["unknown field 'magnitud'", "meant 'magnitude'"]),
    "far-off field": (changed(xyzzy=1), ["unknown field 'xyzzy'"]),
    "unknown origin field": (changed(origin={"modle": "x"}), ["unknown field 'origin.modle'"]),
    "no samples": (changed(samples=0), ["'samples'", "greater than or equal to 1"]),
    "a string": (changed(samples="3"), ["'samples'", "integer"]),
    "rising times": (changed(times=[0, 0.1, 0.2, 1]), ["times must decrease", "step 0"]),
    "one step": (changed(times=[1.0, 0.0]), ["at least two steps"]),
    "too many steps": (changed(times=[1 - n / 20_000 for n in range(20_001)]), ["20000 steps"]),
    "a huge direction": (changed(direction=[0, 1e7, 0]), ["'direction' has 1e+07"]),
    "a huge spread": (changed(magnitude_std=[0, 1e7, 0]), ["'magnitude_std' has 1e+07"]),
    "a number beyond all": (changed(direction=[0, 1e308, 0]), ["'direction.1'", "beyond 1e+30"]),
    "samples beyond all": (changed(samples=10**12), ["'samples'"]),
}


@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content_says_what_and_what_to_do(case, tmp_path):
    content, parts = BAD_CONTENT[case]
    path = tmp_path / "bad.profile.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError) as caught:
        Profile.load(path)
    message = str(caught.value)
    for part in (str(path), *parts, "Calibrate again, or restore the file"):
        assert part in message
    assert "\n" not in message


def test_a_key_that_occurs_twice_is_named():
    text = json.dumps(changed()).replace('"samples": ', '"samples": 3, "samples": ')
    with pytest.raises(ProfileError, match="the key 'samples' occurs twice in one object"):
        Profile.from_json(text)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.profile.json"
    with path.open("wb") as file:
        file.truncate(500 * 2**20)  # a hole, that takes no room
    with pytest.raises(ProfileError, match=r"cannot read .*: it has more than 16 MiB"):
        Profile.load(path)


@pytest.mark.parametrize("content", ["# my notes\n", '{"format": "tacache-plan"}', "{", "\xff"])
def test_only_a_profile_is_written_over(tmp_path, content):
    path = tmp_path / "notes.md"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ProfileError, match=r"notes\.md is there and is not a tacache-profile file"):
        profile_from([1.0] * 3, [0.5] * 3).save(path)
    assert path.read_text(encoding="latin-1") == content
    path.write_text("")
    for _ in range(2):
        profile_from([1.0] * 3, [0.5] * 3).save(path)


def test_a_misspelt_field_is_named_with_the_right_one():
    content = changed()
    content["magnitud"] = content.pop("magnitude")
    with pytest.raises(ProfileError, match=r"unknown field 'magnitud' \(meant 'magnitude'\?\)"):
        Profile.from_json(json.dumps(content))


def test_a_missing_field_is_named():
    content = changed()
    del content["direction_std"]
    with pytest.raises(ProfileError, match="'direction_std': field required"):
        Profile.from_json(json.dumps(content))


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.5])
def test_a_wrong_version_says_which_is_read(version):
    with pytest.raises(ProfileError) as caught:
        Profile.from_json(json.dumps(changed(version=version)), name="p.json")
    assert f"p.json has version {version!r} of tacache-profile" in str(caught.value)
    assert "reads version 1" in str(caught.value)
    assert "make the file again" in str(caught.value)


def test_another_format_is_named():
    plan = Plan.full(time_grid(3))
    with pytest.raises(ProfileError, match="not a tacache-profile file: its format is 'tacache-pl"):
        Profile.from_json(plan.to_json())
    for text in ("{}", "[1, 2]", "3"):
        with pytest.raises(ProfileError, match="not a tacache-profile file: it has no such format"):
            Profile.from_json(text)


@pytest.mark.parametrize("text", ["", "{", "not json", '{"format": }', "[" * 100_000])
def test_text_that_is_not_json_is_said_so(text):
    with pytest.raises(ProfileError, match=r"is not JSON .*Calibrate again"):
        Profile.from_json(text)


def test_a_binary_file_cannot_be_read(tmp_path):
    path = tmp_path / "x.profile.json"
    path.write_bytes(b"\x80\x04\x95\xff\xfe")
    with pytest.raises(ProfileError, match=r"cannot read .*x\.profile\.json: .*utf-8"):
        Profile.load(path)


def test_a_missing_file_and_a_directory_cannot_be_read(tmp_path):
    with pytest.raises(ProfileError, match=r"cannot read .*none\.json: .*No such file"):
        Profile.load(tmp_path / "none.json")
    with pytest.raises(ProfileError, match=r"cannot read .*[Dd]irectory"):
        Profile.load(tmp_path)
