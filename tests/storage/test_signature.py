"""The signature of a run, and which plans are for it."""

from tacache import Origin, instant_plan, time_grid
from tacache.storage.signature import RunSignature

TIMES = time_grid(20, shift=3.0)
ORIGIN = Origin(kind="diffusers", pipeline="P", weights="w", call={"guidance_scale": 3.0})
RUN = RunSignature(ORIGIN, TIMES, (), 20)


def test_a_break_begins_another_part():
    assert (RUN.steps, RUN.parts, RUN._replace(breaks=(0.9,)).parts) == (20, 1, 2)


def test_a_fitted_plan_needs_its_number_of_steps():
    plan = instant_plan(TIMES, 5)
    fitted = plan.model_copy(update={"rule": "fitted"})
    shorter, cut = RunSignature(ORIGIN, TIMES[8:], (), 12), RunSignature(ORIGIN, TIMES[8:], (), 20)
    assert (shorter.takes(plan), shorter.takes(fitted), cut.takes(fitted)) == (True, False, True)


def test_keys_differ_where_a_plan_is_for_another_run():
    others = [
        RUN._replace(times=time_grid(20, shift=2.0)),
        RUN._replace(breaks=(0.5,)),
        RUN._replace(origin=ORIGIN.model_copy(update={"weights": "v"})),
        RUN._replace(origin=ORIGIN.model_copy(update={"call": {"guidance_scale": 4.0}})),
    ]
    assert len({run.key for run in (RUN, *others)}) == 5
    assert RUN.key == RUN._replace(whole=30).key
