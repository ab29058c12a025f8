"""The setting of a run, and which plans are for it."""

from tacache import Origin, instant_plan, time_grid
from tacache.host.settings import Setting, fits, key_of

TIMES = time_grid(20, shift=3.0)
ORIGIN = Origin(kind="diffusers", pipeline="P", weights="w", call={"guidance_scale": 3.0})
RUN = Setting(ORIGIN, TIMES, (), 20)


def test_a_break_begins_another_part():
    assert (RUN.steps, RUN.parts, RUN._replace(breaks=(0.9,)).parts) == (20, 1, 2)


def test_a_fitted_plan_needs_its_number_of_steps():
    plan = instant_plan(TIMES, 5)
    fitted = plan.model_copy(update={"rule": "fitted"})
    shorter, cut = Setting(ORIGIN, TIMES[8:], (), 12), Setting(ORIGIN, TIMES[8:], (), 20)
    assert (fits(plan, shorter), fits(fitted, shorter), fits(fitted, cut)) == (True, False, True)


def test_keys_differ_where_a_plan_is_for_another_run():
    others = [
        RUN._replace(times=time_grid(20, shift=2.0)),
        RUN._replace(breaks=(0.5,)),
        RUN._replace(origin=ORIGIN.model_copy(update={"weights": "v"})),
        RUN._replace(origin=ORIGIN.model_copy(update={"call": {"guidance_scale": 4.0}})),
    ]
    assert len({key_of(run) for run in (RUN, *others)}) == 5
    assert key_of(RUN) == key_of(RUN._replace(whole=30))
