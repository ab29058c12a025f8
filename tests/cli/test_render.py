import pytest
from rich.console import Console
from tests.storage.test_files import JOINT
from tests.support import plan_with, profile_from

from tacache import Origin, Plan, make_plan
from tacache.cli.render import ANCHOR, DOTS, ROWS, SKIP, curve, plan_view, profile_view, strip

HOST = Origin(
    model="org/model",
    pipeline="SomePipeline",
    scheduler="SomeScheduler",
    latent_shape=(16, 8),
    dtype="float16",
)


def shown(view, width=100):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view)
    return console.export_text()


def test_the_strip_has_a_sign_for_every_step(profile):
    plan = plan_with("tasu", profile, (0, 1, 4))
    assert strip(plan) == ANCHOR * 2 + SKIP * 2 + ANCHOR + SKIP * 15


def test_a_curve_falls_from_its_highest_value_to_its_lowest():
    lines = curve([3.0, 2.0, 1.0], "title").plain.splitlines()
    assert lines[0] == "title"
    rows = [line.split("┤")[1].ljust(3) for line in lines[1:]]
    assert len(rows) == ROWS
    assert "3 " in lines[1]
    assert "1 " in lines[ROWS]
    assert rows[0] == f"{DOTS[0]}  "
    assert rows[-1] == f"  {DOTS[-1]}"
    assert sum(cell in DOTS for row in rows for cell in row if cell != " ") == 3


def test_a_constant_curve_is_flat():
    lines = curve([2.0] * 5, "title").plain.splitlines()[1:]
    assert lines[0].endswith(DOTS[0] * 5)
    assert all(line.split("┤")[1].strip() == "" for line in lines[1:])


def test_a_profile_is_shown_with_both_curves(profile):
    text = shown(profile_view(profile.model_copy(update={"origin": HOST})))
    for part in (
        "org/model / SomePipeline / SomeScheduler, latents of 16x8 float16",
        "20, t from 1 to 0",
        "magnitude (MI",
        "direction (DI",
        "spread",
    ):
        assert part in text


def test_a_plan_is_shown_with_its_strip_and_speedup(profile):
    plan = make_plan(profile, evaluations=5)
    text = shown(plan_view(plan))
    for part in (
        "a velocity function, latents of 2x3 float64",
        "5 of 20 steps",
        "4.00x",
        f"tau_k {plan.tau_k:.4g}, tau_d {plan.tau_d:.4g}, max_skip 12",
        strip(plan),
        "intervals " + " ".join(map(str, plan.intervals)),
        "magnitude (MI",
        "direction (DI",
    ):
        assert part in text


def test_further_latents_are_shown_with_what_they_were_measured_to_do():
    text = shown(plan_view(JOINT))
    for part in ("latent audio", "second 0.75", "spectral distance 1.75 dB", "drift 0.0312"):
        assert part in text


def test_a_plan_without_rates_is_shown_without_curves(profile):
    for plan in (Plan.full(profile.times), plan_with("fitted", profile, (0, 1, 4))):
        text = shown(plan_view(plan))
        assert strip(plan) in text
        assert "magnitude" not in text
        assert "thresholds" not in text


@pytest.mark.parametrize("name", ["models/[v2]/flux", "x[/y]", "[bold]"])
def test_names_with_brackets_are_shown_as_they_are(profile, name):
    named = profile.model_copy(update={"origin": Origin(model=name)})
    assert name in shown(profile_view(named))


@pytest.mark.parametrize("steps", [50, 100, 200])
def test_a_curve_keeps_its_rows_in_a_terminal_of_80_columns(steps):
    made = profile_from([n / steps for n in range(steps)], [0.1] * steps)
    lines = shown(profile_view(made), width=80).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("magnitude (MI"))
    assert all("┤" in line for line in lines[start + 1 : start + 1 + ROWS])
