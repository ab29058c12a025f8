import re
import sys

import numpy as np
import pytest
from tests.command_line import run

from tacache import models
from tacache.errors import TACacheError
from tacache.plan import Plan, make_plan
from tacache.plots import middle_steps, plot_profile, profile_svg
from tacache.profile import Profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    steps = 20
    return Profile(
        times=tuple(1 - n / steps for n in range(steps + 1)),
        samples=3,
        magnitude=tuple(0.1 * n for n in range(steps)),
        magnitude_std=(0.05,) * steps,
        direction=(0.2,) * steps,
        direction_std=(0.01,) * steps,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_the_suffix_says_what_is_drawn(profile, tmp_path, suffix, start):
    target = plot_profile(profile, tmp_path / "new" / f"curves{suffix}")
    assert target.read_bytes().startswith(start)


@pytest.mark.slow
def test_a_profile_gives_the_same_drawing_again(profile, tmp_path):
    first, again = (plot_profile(profile, tmp_path / f"{n}.svg").read_text() for n in "ab")
    assert first == again
    assert "tmp" not in first
    other = profile.model_copy(update={"direction": (0.3,) * 20})
    assert plot_profile(other, tmp_path / "c.svg").read_text() != first


def test_another_suffix_is_an_error_that_names_those_there_are(profile, tmp_path):
    with pytest.raises(TACacheError, match=r"\.svg, \.png, \.pdf"):
        plot_profile(profile, tmp_path / "curves.jpg")
    assert not list(tmp_path.iterdir())


def test_drawing_names_its_extra(profile, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TACacheError, match=r"tacache\[plots\]"):
        plot_profile(profile, tmp_path / "curves.svg")


def test_the_middle_leaves_out_a_fifth_on_either_side():
    assert middle_steps(20) == range(4, 15)
    assert list(middle_steps(2)) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True])
def test_a_page_gets_a_drawing_that_names_nothing_outside_itself(profile, narrow):
    plans = [make_plan(profile, evaluations=k) for k in (10, 8)]
    drawn = profile_svg(profile, plans, narrow=narrow)
    assert drawn.startswith("<svg")
    assert drawn == profile_svg(profile, plans, narrow=narrow)
    outside = set(re.findall(r"https?://[^\"]*", drawn))
    assert outside == {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}  # namespaces
    assert not re.search(r"<script|@import|<image|href=\"[^#]", drawn)


@pytest.mark.slow
def test_the_strips_below_a_profile_are_those_of_its_plans(profile):
    def boxes(*plans):
        """How many boxes are filled, and how many are pale."""
        drawn = profile_svg(profile, plans)
        pale = drawn.count("opacity: 0.15")
        return drawn.count("fill: #1f77b4") - plain.count("fill: #1f77b4") - pale, pale

    plain = profile_svg(profile)
    plan = make_plan(profile, evaluations=8)
    assert boxes(plan) == (8, 12)
    assert boxes(plan, Plan.full(profile.times)) == (28, 12)


@pytest.mark.slow
def test_show_draws_a_profile_and_refuses_a_plan(profile, tmp_path):
    file = profile.save(tmp_path / "p.json")
    shown = run("show", file, "--plot", tmp_path / "p.svg")
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "p.svg").is_file()
    plan = make_plan(profile, evaluations=8).save(tmp_path / "plan.json")
    refused = run("show", plan, "--plot", tmp_path / "q.svg")
    assert refused.exit_code == 2
    assert "is a plan" in refused.output
    assert not (tmp_path / "q.svg").exists()


def test_the_committed_figure_is_of_the_shipped_profile(tmp_path, request):
    committed = request.config.rootpath / "docs" / "figures" / "tiny-flux-indicators.svg"
    profile = Profile.load(models.embedded("tiny-flux").profile)
    assert (profile.samples, profile.steps) == (60, 50)
    drawn = plot_profile(profile, tmp_path / "again.svg").read_text()
    bands, kept = points(drawn), points(committed.read_text())
    assert len(bands) > 100
    if len(bands) == len(kept):
        assert np.abs(bands - kept).max() < 0.05  # of a point
    else:  # matplotlib 3.10 draws other ticks and places the axes differently
        nearest = np.abs(bands[:, None] - kept[None]).max(axis=2).min(axis=1)
        assert nearest.max() < 1


def points(svg):
    """Where the lines of a figure lead."""
    lines = (line.split()[1:3] for line in svg.splitlines() if line.startswith("L "))
    return np.array([[float(number) for number in line] for line in lines])
