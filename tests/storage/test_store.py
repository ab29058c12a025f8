"""The plan store: what is found unasked, what is kept, and what a bad disk or file does."""

import errno
import json
import logging
import os
from pathlib import Path

import pytest
from tests.forked import ForkedScript

from tacache import Certificate, Origin, Plan, PlanError, time_grid
from tacache.errors import StorageError
from tacache.storage import atomic, store
from tacache.storage.signature import RunSignature
from tacache.storage.store import PlanStore, default_folder, target_of

TIMES = tuple(time_grid(8, shift=2.0))
ORIGIN = Origin(
    kind="diffusers",
    pipeline="FluxPipeline",
    model="black-forest-labs/FLUX.1-dev",
    denoiser="FluxTransformer2DModel",
    scheduler="FlowMatchEulerDiscreteScheduler",
    scheduler_config={"shift": 3.0, "stochastic_sampling": False},
    latent_shape=(4096, 64),
    dtype="bfloat16",
    call={"guidance_scale": 3.5, "height": 1024, "width": 1024, "prompt_2": "a fox"},
    weights="ab" * 32,
    negative=False,
)
CERTIFICATE = Certificate(
    held_out=2, drift=0.1, fit_drift=0.05, evaluations_spent=100, date="2026-01-01"
)
FLOW = CERTIFICATE.model_copy(update={"flow_drift": 0.2, "equivalent_steps": 20.0})


def fitted(origin=ORIGIN, evaluations=3, certificate=CERTIFICATE, times=TIMES, **fields):
    anchors = tuple(range(evaluations))
    return Plan(
        rule="fitted",
        times=times,
        anchors=anchors,
        weights=((1.0,),) * evaluations,
        origin=origin,
        certificate=certificate,
        **fields,
    )


@pytest.fixture
def plans(tmp_path):
    return PlanStore(tmp_path / "plans", shipped=())


def changed(**fields):
    return ORIGIN.model_copy(update=fields)


def call(**changes):
    return changed(call={**ORIGIN.call, **changes})


def test_the_folder_is_in_tacache_home(home):
    assert PlanStore().folder == default_folder() == home / "plans"


def test_without_tacache_home_the_system_says_where(monkeypatch):
    monkeypatch.setenv("TACACHE_HOME", "")
    assert "tacache" in default_folder().parts
    assert default_folder().name == "plans"


def test_an_empty_store_finds_nothing_and_makes_no_folder(plans):
    assert plans.plans() == []
    assert plans.find(ORIGIN, TIMES, 3) is None
    assert not plans.folder.exists()


def test_what_is_put_is_found_again_and_is_a_plain_plan_file(plans):
    stored = plans.put(fitted())
    assert Plan.load(stored.path) == fitted()
    assert PlanStore(plans.folder).find(ORIGIN, TIMES, 3) == stored
    assert plans.get(stored.name) == stored
    assert stored.name.startswith("FLUX.1-dev-3of8-")


OTHERS = {
    "kind": changed(kind="bagel"),
    "pipeline": changed(pipeline="FluxImg2ImgPipeline"),
    "denoiser": changed(denoiser="Other"),
    "weights": changed(weights="cd" * 32),
    "unknown weights": changed(weights=None),
    "scheduler": changed(scheduler="UniPCMultistepScheduler"),
    "steps' options": changed(scheduler_config={"shift": 3.0, "stochastic_sampling": True}),
    "shape": changed(latent_shape=(1024, 64)),
    "dtype": changed(dtype="float32"),
    "size": call(height=512),
    "guidance": call(guidance_scale=7.0),
    "adapters' scale": call(joint_attention_kwargs={"scale": 0.5}),
    "another argument": call(max_area=3),
}


@pytest.mark.parametrize("origin", OTHERS.values(), ids=OTHERS)
def test_nothing_is_found_where_one_thing_differs(plans, origin):
    plans.put(fitted())
    assert plans.find(origin, TIMES, 3) is None


def test_nothing_is_found_for_other_steps_budgets_or_parts(plans):
    plans.put(fitted())
    assert plans.find(ORIGIN, time_grid(8, shift=3.0), 3) is None
    assert plans.find(ORIGIN, time_grid(9, shift=2.0), 3) is None
    assert plans.find(ORIGIN, TIMES, 4) is None
    assert plans.find(ORIGIN, TIMES, 3, breaks=(0.9,)) is None


ALIKE = {
    "another name of the model": changed(model="/models/flux"),
    "another prompt": call(prompt_2="a dog", negative_prompt="blurry"),
    "another number of pictures": call(num_images_per_prompt=4, num_inference_steps=8),
    "what the grid shows": changed(
        scheduler_config={"shift": 1.0, "stochastic_sampling": False, "new": 1}
    ),
    "latents that are not known yet": changed(latent_shape=None, dtype=None),
    "a whole number": call(height=1024.0),
    "a negative prompt that guides nothing": changed(negative=True),
}


@pytest.mark.parametrize("origin", ALIKE.values(), ids=ALIKE)
def test_what_changes_no_velocity_does_not_matter(plans, origin):
    plans.put(fitted())
    assert plans.find(origin, TIMES, 3) is not None


def test_rounding_of_the_grid_does_not_matter(plans):
    plans.put(fitted())
    assert plans.find(ORIGIN, [t + 1e-6 for t in TIMES], 3) is not None


def test_a_negative_prompt_matters_where_it_switches_guidance_on(plans):
    guided = call(true_cfg_scale=4.0)
    plans.put(fitted(guided))
    assert plans.find(guided, TIMES, 3) is not None
    assert plans.find(guided.model_copy(update={"negative": True}), TIMES, 3) is None


def test_an_adapters_scale_of_the_plan_must_be_that_of_the_call(plans):
    plans.put(fitted(call(joint_attention_kwargs={"scale": 0.5})))
    assert plans.find(ORIGIN, TIMES, 3) is None


def test_a_plan_without_a_fingerprint_of_weights_is_listed_but_not_found(plans):
    pulled = fitted(changed(weights=None))
    stored = plans.put(pulled)
    assert plans.find(changed(weights=None), TIMES, 3) is None
    assert plans.get(stored.name).plan == pulled


def test_only_fitted_plans_are_found_unasked(plans):
    plans.put(Plan(rule="reuse", times=TIMES, anchors=(0, 2, 4), origin=ORIGIN))
    assert plans.find(ORIGIN, TIMES, 3) is None
    assert len(plans.plans()) == 1


def test_parts_of_a_run_must_agree(plans):
    plan = Plan.model_validate({**fitted().model_dump(), "breaks": (TIMES[1],)})
    plans.put(plan)
    assert plans.find(ORIGIN, TIMES, 3) is None
    assert plans.find(ORIGIN, TIMES, 3, breaks=(TIMES[1],)) is not None


def test_a_plan_fitted_to_the_run_comes_before_one_fitted_to_the_flow(plans):
    to_flow = plans.put(fitted(certificate=FLOW))
    assert plans.find(ORIGIN, TIMES, 3) == to_flow
    assert target_of(to_flow.plan) == "flow"
    assert "-flow-" in to_flow.name
    to_run = plans.put(fitted())
    assert plans.find(ORIGIN, TIMES, 3) == to_run
    assert len(plans.plans()) == 2


def test_a_plan_for_the_same_purpose_is_replaced(plans):
    first = plans.put(fitted())
    again = fitted(certificate=CERTIFICATE.model_copy(update={"drift": 0.01}))
    second = plans.put(again)
    assert second.path == first.path
    assert [one.plan for one in plans.plans()] == [again]
    plans.put(fitted(times=tuple(t + 1e-7 for t in TIMES)))
    assert len(plans.plans()) == 1


def test_plans_for_other_purposes_lie_beside_each_other(plans):
    for plan in (fitted(), fitted(evaluations=4), fitted(call(guidance_scale=7.0))):
        plans.put(plan)
    assert len(plans.plans()) == 3


def test_shipped_plans_are_found_after_the_users_own(tmp_path, plans):
    shipped = PlanStore(tmp_path / "model" / "plans", shipped=())
    theirs = shipped.put(fitted())
    both = PlanStore(plans.folder, shipped=[shipped.folder])
    assert both.find(ORIGIN, TIMES, 3) == theirs._replace(name=f"model-{theirs.name}")
    assert both.plans() == []
    own = both.put(fitted(certificate=FLOW))
    assert both.find(ORIGIN, TIMES, 3) == own


def test_a_plan_is_removed_by_its_name(plans):
    stored = plans.put(fitted())
    assert plans.remove(stored.name) == stored.path
    assert plans.plans() == []
    with pytest.raises(PlanError, match="there is no plan"):
        plans.remove(stored.name)


def test_a_damaged_file_is_removed_by_its_name(plans):
    plans.folder.mkdir(parents=True)
    broken = plans.folder / "broken.plan.json"
    broken.write_text("{")
    assert plans.remove("broken") == broken
    assert not broken.exists()


def test_plans_that_ship_have_their_models_name_before_theirs(tmp_path, plans):
    plan = fitted()
    for model in ("one", "two"):
        plan.save(_made(tmp_path / model / "plans") / "13.plan.json")
    store = PlanStore(plans.folder, shipped=[tmp_path / "one/plans", tmp_path / "two/plans"])
    assert [one.name for one in store.shipped_plans()] == ["one-13", "two-13"]
    assert store.get("two-13").path == tmp_path / "two/plans/13.plan.json"


def _made(folder):
    folder.mkdir(parents=True)
    return folder


def test_a_misspelt_name_is_answered_with_the_nearest(plans):
    stored = plans.put(fitted())
    with pytest.raises(PlanError, match=f"did you mean {stored.name}"):
        plans.get(stored.name[:-1])
    with pytest.raises(PlanError, match="there is no plan"):
        plans.get("../secret")


NAMES = {
    "/models/my model": "my-model-3of8-",
    "C:\\models\\flux\\": "flux-3of8-",
    "../..": "plan-3of8-",
    "x" * 300: "x" * 40 + "-3of8-",
    "\x1b[31mred": "31mred-3of8-",
}


@pytest.mark.parametrize("model", NAMES)
def test_names_are_plain_whatever_the_model_is_called(plans, model):
    stored = plans.put(fitted(changed(model=model)))
    assert stored.name.startswith(NAMES[model])
    assert stored.path.parent == plans.folder


def test_the_setting_is_one_text_for_equal_settings():
    same = call(prompt_2="b", height=1024)
    run = RunSignature(ORIGIN, TIMES)
    assert run.text == RunSignature(same, TIMES).text
    assert run.text != RunSignature(call(height=512), TIMES).text
    assert run.text != RunSignature(ORIGIN, TIMES, (0.9,)).text
    json.loads(run.text)


def damaged(folder: Path) -> dict[str, Path]:
    """Files that no store should use, by what is wrong with them."""
    good = fitted().to_json()
    texts = {
        "torn": good[: len(good) // 2],
        "empty": "",
        "deep": '{"a":' * 5000 + "1" + "}" * 5000,
        "huge": " " * (17 * 2**20),
        "foreign": '{"format": "tacache-profile", "version": 1}',
        "wrong": good.replace('"anchors": [0, 1, 2]', '"anchors": [2, 1, 0]'),
    }
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.plan.json").write_text(text)
    outside = folder.parent / "outside.json"
    outside.write_text(good)
    (folder / "link.plan.json").symlink_to(outside)
    os.mkfifo(folder / "pipe.plan.json")
    (folder / "folder.plan.json").mkdir()
    return {path.name: path for path in folder.iterdir()}


def test_damaged_and_hostile_files_are_named_once_and_never_used(plans, caplog):
    bad = damaged(plans.folder)
    stored = plans.put(fitted())
    with caplog.at_level(logging.WARNING, "tacache.store"):
        assert plans.plans() == [stored]
        assert plans.find(ORIGIN, TIMES, 3) == stored
        assert plans.plans() == [stored]
    for name in bad:
        assert sum(name in one.getMessage() for one in caplog.records) == 1, name
    assert all(os.path.lexists(path) for path in bad.values())


def test_a_damaged_file_under_a_plans_own_name_is_kept(plans):
    stored = plans.put(fitted())
    stored.path.write_text("{ my notes")
    again = plans.put(fitted())
    assert again.path != stored.path
    assert stored.path.read_text() == "{ my notes"
    assert plans.find(ORIGIN, TIMES, 3) == again


def test_a_repaired_file_is_read_again(plans):
    stored = plans.put(fitted())
    good = stored.path.read_text()
    stored.path.write_text("{")
    assert plans.find(ORIGIN, TIMES, 3) is None
    stored.path.write_text(good)
    assert plans.find(ORIGIN, TIMES, 3) == stored


def test_a_folder_that_is_a_file_is_said(tmp_path):
    (tmp_path / "plans").write_text("")
    broken = PlanStore(tmp_path / "plans", shipped=())
    assert broken.plans() == []
    with pytest.raises(StorageError, match="plans"):
        broken.put(fitted())


def test_a_read_only_store_is_said_and_still_read(plans, monkeypatch):
    stored = plans.put(fitted())

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(atomic.os, "open", refuse)
    with pytest.raises(StorageError, match="Read-only file system"):
        plans.put(fitted(evaluations=4))
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match="Read-only file system"):
        plans.remove(stored.name)
    assert PlanStore(plans.folder).find(ORIGIN, TIMES, 3) == stored


@pytest.mark.parametrize("full", ["write_text", "replace"])
def test_a_full_disk_is_said_and_nothing_is_lost(plans, monkeypatch, full):
    stored = plans.put(fitted())

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    better = fitted(certificate=CERTIFICATE.model_copy(update={"drift": 0.01}))
    monkeypatch.setattr(Path, full, refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        plans.put(better)
    monkeypatch.undo()
    assert PlanStore(plans.folder).plans() == [stored]
    assert sorted(path.name for path in plans.folder.iterdir()) == [".lock", stored.path.name]


def test_a_store_that_another_process_holds_is_said(plans, monkeypatch):
    plans.put(fitted())
    monkeypatch.setattr(store, "PATIENCE", 0.05)
    with plans._locked(), pytest.raises(StorageError, match="another process has been writing"):
        PlanStore(plans.folder).put(fitted())


def test_a_lock_that_leads_elsewhere_is_not_followed(plans, tmp_path):
    plans.folder.mkdir()
    (tmp_path / "precious").write_text("text")
    (plans.folder / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="is a link"):
        plans.put(fitted())
    assert (tmp_path / "precious").read_text() == "text"


WRITER = """
import sys
from tests.storage.test_store import CERTIFICATE, PlanStore, fitted
plans = PlanStore(sys.argv[1], shipped=())
for i in range(10):
    plans.put(fitted(evaluations=3, certificate=CERTIFICATE.model_copy(update={"drift": i / 10})))
    plans.put(fitted(evaluations=int(sys.argv[2])))
"""


@pytest.mark.slow
def test_two_processes_write_at_once(plans):
    running = [ForkedScript(WRITER, plans.folder, n) for n in (4, 5)]
    assert [one.wait(120) for one in running] == [0, 0]
    assert sorted(one.plan.evaluations for one in plans.plans()) == [3, 4, 5]
    assert plans.get(plans.plans()[0].name).plan.certificate.drift == 0.9


def test_plans_are_compared_with_a_run_once_until_a_file_changes(plans, monkeypatch):
    compared = []
    monkeypatch.setattr(RunSignature, "agrees", lambda run, plan: compared.append(plan) or True)
    for evaluations in (2, 3, 4):
        plans.put(fitted(evaluations=evaluations))
    for _ in range(3):
        assert plans.find(ORIGIN, TIMES, 3).plan.evaluations == 3
        assert len(plans.fitted_for(ORIGIN, TIMES)) == 3
    assert len(compared) == 3
    plans.find(changed(dtype="float32"), TIMES, 3)  # another run
    assert len(compared) == 6
    plans.put(fitted(evaluations=5))
    assert len(plans.fitted_for(ORIGIN, TIMES)) == 4
    assert len(compared) == 10


def test_what_is_remembered_of_runs_has_an_end(plans, monkeypatch):
    monkeypatch.setattr(store, "MAX_ANSWERS", 2)
    for dtype in ("float32", "float16", "bfloat16"):
        plans.find(changed(dtype=dtype), TIMES, 3)
    assert len(plans._answers) == 2
