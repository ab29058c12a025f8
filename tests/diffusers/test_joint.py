"""Joint pipelines: each latent follows its own times and weights, at shared anchors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.modular_pipelines import PipelineState
from tests.diffusers_support import MODULAR, SUPPORTED, call_of, counted, fitted
from tests.tiny import PIPELINES
from tests.tiny.joint import PairedPipeline, minimax, minimax_call, paired
from tests.tiny.prompted import minimax_h3
from torch import Tensor

from tacache import HostError, Plan, PlanError, Stepper, instant_plan
from tacache.diffusers import accelerate, applied, apply, drive, fit_plan, remove
from tacache.diffusers.calls import pixels_of, sounds_of
from tacache.diffusers.joint import further_schedulers, latent_names
from tacache.diffusers.stepping import run_times
from tacache.fidelity import psnr, spectral_distance
from tacache.plan import LatentPlan
from tacache.storage.store import PlanStore

STEPS, EVALUATIONS = 12, 6
LTX2 = PIPELINES["ltx2"]


def drawn(pipe: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pictures and sound of a run, as latents."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(pipe, PairedPipeline):
        made = pipe(num_inference_steps=STEPS, generator=generator, output_type="latent")
        return made.frames, made.audio
    if type(pipe).__name__ == "LTX2Pipeline":
        made = pipe(**call_of(LTX2, generator=generator))
        return made.frames, made.audio
    made = pipe(**minimax_call(STEPS), generator=generator)
    return made["latents"], made["audio_latents"]


def grids(pipe: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The noise levels of a full run's pictures and of its sound."""
    drawn(pipe)
    first = run_times(pipe.scheduler)
    further = further_schedulers(pipe)
    return first, run_times(further["audio"]) if further else first


def distances(found: tuple[Tensor, Tensor], full: tuple[Tensor, Tensor]) -> list[float]:
    pairs = zip(found, full, strict=True)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


BUILT = {"paired": lambda: paired(bend=0.4), "minimax-h3": minimax, "ltx2": LTX2.build}
CALLS = {"paired": 1, "minimax-h3": 1, "ltx2": LTX2.calls_per_step}


@pytest.fixture(params=["paired", "minimax-h3", pytest.param("ltx2", marks=pytest.mark.slow)])
def joint(request):
    return BUILT[request.param](), CALLS[request.param]


def test_a_plan_with_all_anchors_is_the_full_run_in_both_latents(joint):
    pipe, _ = joint
    times, sound = grids(pipe)
    full = drawn(pipe)
    with applied(pipe, instant_plan(times, STEPS, latents={"audio": sound})):
        found = drawn(pipe)
    assert all(map(torch.equal, found, full))


def test_both_latents_are_rebuilt_from_as_many_evaluations(joint):
    pipe, calls_per_step = joint
    times, sound = grids(pipe)
    full = drawn(pipe)
    plan = instant_plan(times, EVALUATIONS, latents={"audio": sound})
    with applied(pipe, plan), counted(pipe, ("transformer",)) as calls:
        found = drawn(pipe)
    assert len(calls) == EVALUATIONS * calls_per_step
    assert min(distances(found, full)) > 1e-6
    assert max(distances(found, full)) < 0.2


def test_straight_flows_end_at_their_data_by_any_plan():
    pipe = paired()
    times, sound = grids(pipe)
    plan = instant_plan(times, 3, latents={"audio": sound})
    with applied(pipe, plan):
        found = drawn(pipe)
    ends = pipe.transformer.picture, pipe.transformer.sound
    for got, end in zip(found, ends, strict=True):
        torch.testing.assert_close(got, end.detach(), rtol=0, atol=1e-4)


def test_each_latent_has_its_own_weights():
    """What a plan does to one latent is what its entry says, whatever the other's weights are."""
    pipe = paired(bend=0.4)
    times, sound = grids(pipe)
    plan = instant_plan(times, EVALUATIONS, latents={"audio": sound})
    with applied(pipe, plan):
        drawn(pipe)
        for name, part in (("scheduler", None), ("audio_scheduler", "audio")):
            assert getattr(pipe, name).run_plan == plan.of_latent(part)
    anchors = (0, 1, 3, 6, 8, 10)
    first = fitted(times, anchors)
    other = LatentPlan(times=sound, weights=((1.0,),) * len(anchors))
    with applied(pipe, first.model_copy(update={"latents": {"audio": other}})):
        drawn(pipe)
        assert pipe.scheduler.run_plan.weights == first.weights
        assert pipe.audio_scheduler.run_plan.weights == other.weights


def test_a_copied_scheduler_has_the_weights_of_its_latent():
    """LTX2 copies its scheduler before the run is prepared."""
    pipe = LTX2.build()
    times, _ = grids(pipe)
    first = fitted(times, (0, 1, 3, 6, 8, 10))
    reused = LatentPlan(times=times, weights=((1.0,),) * 6)
    seen: dict[tuple[float, ...], int] = {}
    plan = first.model_copy(update={"latents": {"audio": reused}})
    jump = Stepper.jump

    def jumped(self: Stepper, *args: Any) -> Tensor:
        seen[self.plan.weights] = seen.get(self.plan.weights, 0) + 1
        return jump(self, *args)

    with applied(pipe, plan), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "jump", jumped)
        drawn(pipe)
    assert seen == {first.weights: 6, reused.weights: 6}


class CopiesLate(PairedPipeline):
    """Copies its scheduler when the run is prepared, as Cosmos 3 and Kandinsky 6 do."""

    def __init__(self, transformer: Any, scheduler: Any) -> None:
        super(PairedPipeline, self).__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, generator: Any = None) -> tuple[Tensor, Tensor]:
        """The latents of pictures and of sound."""
        x = torch.randn(1, 4, 4, 4, generator=generator)
        y = torch.randn(1, 6, 8, generator=generator)
        self.scheduler.set_timesteps(STEPS)
        audio_scheduler = copy.deepcopy(self.scheduler)
        for t in self.scheduler.timesteps:
            v, w = self.transformer(x, y, t / 1000, t / 1000)
            x = self.scheduler.step(v, t, x, return_dict=False)[0]
            y = audio_scheduler.step(w, t, y, return_dict=False)[0]
        self.steppers = [getattr(s, "run_plan", None) for s in (self.scheduler, audio_scheduler)]
        return x, y


def test_a_copy_of_a_prepared_run_follows_its_own_latent():
    pipe = CopiesLate(paired(bend=0.4).transformer, FlowMatchEulerDiscreteScheduler(shift=5.0))
    pipe(generator=torch.Generator().manual_seed(0))
    times = run_times(pipe.scheduler)
    first = fitted(times, (0, 1, 3, 6, 8, 10), origin={"latent_shape": (4, 4, 4)})
    other = LatentPlan(times=times, weights=((1.0,),) * 6, latent_shape=(6, 8))
    plan = first.model_copy(update={"latents": {"audio": other}})
    with applied(pipe, plan):
        pipe(generator=torch.Generator().manual_seed(0))
    assert [one.weights for one in pipe.steppers] == [first.weights, other.weights]
    with applied(pipe, first), pytest.raises(HostError, match="'audio'"):
        pipe(generator=torch.Generator().manual_seed(0))


def test_weights_fitted_for_one_latent_are_refused_for_the_other():
    pipe = paired(bend=0.4)
    times, _ = grids(pipe)
    with pytest.raises(HostError, match="'audio'"):
        apply(pipe, fitted(times, (0, 1, 3, 6, 8, 10)))
    with pytest.raises(HostError, match="'audio'"):
        accelerate(pipe, plan=fitted(times, (0, 1, 3, 6, 8, 10)))
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler
    pipe = LTX2.build()
    times, _ = grids(pipe)
    with applied(pipe, fitted(times, (0, 1, 3, 6, 8, 10))), pytest.raises(HostError, match="audio"):
        drawn(pipe)


def test_a_plan_with_other_latents_is_refused():
    pipe = paired()
    times, sound = grids(pipe)
    with pytest.raises(HostError, match="sound"):
        apply(pipe, instant_plan(times, EVALUATIONS, latents={"sound": sound}))
    with pytest.raises(HostError, match="audio"):
        apply(PIPELINES["flux"].build(), instant_plan(times, 6, latents={"audio": sound}))
    with pytest.raises(PlanError, match="audio"):
        Stepper(instant_plan(times, EVALUATIONS, latents={"audio": sound}))


def test_latents_that_are_evaluated_at_other_steps_are_stopped():
    pipe = paired()
    times, sound = grids(pipe)
    apply(pipe, instant_plan(times, EVALUATIONS, latents={"audio": sound}))
    remove_first = pipe.audio_scheduler
    apply(pipe, instant_plan(times, EVALUATIONS + 1, latents={"audio": sound}))
    pipe.audio_scheduler = remove_first
    with pytest.raises(HostError, match="other steps"):
        drawn(pipe)


def test_accelerate_gives_every_latent_its_grid(joint):
    pipe, calls_per_step = joint
    times, sound = grids(pipe)
    with applied(pipe, instant_plan(times, EVALUATIONS, latents={"audio": sound})):
        expected = drawn(pipe)
    plain = {name: type(part) for name, part in further_schedulers(pipe).items()}
    accelerate(pipe, evaluations=EVALUATIONS)
    with counted(pipe, ("transformer",)) as calls:
        found = drawn(pipe)
    assert len(calls) == EVALUATIONS * calls_per_step
    assert all(map(torch.equal, found, expected))
    remove(pipe)
    assert {name: type(part) for name, part in further_schedulers(pipe).items()} == plain


def test_a_plan_is_saved_with_each_scheduler(tmp_path):
    pipe = paired(bend=0.4)
    times, sound = grids(pipe)
    plan = instant_plan(times, EVALUATIONS, latents={"audio": sound})
    with applied(pipe, plan):
        expected = drawn(pipe)
        for name in ("scheduler", "audio_scheduler"):
            getattr(pipe, name).save_pretrained(tmp_path / name)
            kind = type(getattr(pipe, name))
            setattr(pipe, name, kind.from_pretrained(tmp_path / name))
        assert pipe.audio_scheduler.plan == plan
        assert all(map(torch.equal, drawn(pipe), expected))


@pytest.mark.parametrize("name", ["ltx2", "modular-ltx2"])
def test_latents_are_known_by_the_code_of_a_pipeline(name):
    assert latent_names(PIPELINES[name].build()) == ("audio",)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in (*SUPPORTED, *MODULAR) if "ltx2" not in n])
def test_no_other_pipeline_is_taken_for_a_joint_one(name):
    assert latent_names(PIPELINES[name].build()) == ()


def test_the_full_run_of_one_latent_is_that_of_all():
    pipe = paired(bend=0.4)
    times, _ = grids(pipe)
    full = drawn(pipe)
    with applied(pipe, Plan.full(times)):
        assert all(map(torch.equal, drawn(pipe), full))


# --- fits of all latents together


def fitted_to(pipe: Any, **changes: Any) -> Plan:
    prompts = [f"prompt {number}" for number in range(6)]
    options = {"seeds": [100, 101], "num_inference_steps": STEPS, "search": False}
    return fit_plan(pipe, prompts, **{"evaluations": EVALUATIONS, **options, **changes})


@pytest.fixture(scope="module")
def fit() -> Plan:
    return fitted_to(paired(bend=0.4))


@pytest.mark.slow
def test_a_fit_is_nearer_in_each_latent_than_the_instant_plan_on_unseen_samples(fit):
    pipe = paired(bend=0.4)
    times, sound = grids(pipe)
    instant = instant_plan(times, EVALUATIONS, latents={"audio": sound})
    for seed in range(4):
        full = drawn(pipe, seed)
        with applied(pipe, instant):
            before = distances(drawn(pipe, seed), full)
        with applied(pipe, fit), counted(pipe, ("transformer",)) as calls:
            now = distances(drawn(pipe, seed), full)
        assert len(calls) == EVALUATIONS
        assert all(a < b for a, b in zip(now, before, strict=True))


def test_the_certificate_of_each_latent_is_what_it_does(fit):
    pipe = paired(bend=0.4)
    drifts = []
    for seed in (100, 101):  # of the prompts, which this model does not read
        full = drawn(pipe, seed)
        with applied(pipe, fit):
            drifts.append(distances(drawn(pipe, seed), full))
    first, audio = fit.certificate, fit.latents["audio"].certificate
    for certificate, found in zip((first, audio), zip(*drifts, strict=True), strict=True):
        assert min(found) * 0.99 <= certificate.drift <= max(found) * 1.01
        assert certificate.worst_drift == pytest.approx(max(found), rel=0.01)
    assert first.psnr > 30
    assert 0 < audio.spectral_distance <= audio.worst_spectral_distance < 10


def test_weights_of_the_other_latent_would_do_worse(fit):
    """Each latent has weights of its own, and those of the other lead it elsewhere."""
    pipe = paired(bend=0.4)
    audio = fit.latents["audio"]
    swapped = fit.model_copy(
        update={
            "weights": audio.weights,
            "latents": {"audio": audio.model_copy(update={"weights": fit.weights})},
        }
    )
    full = drawn(pipe)
    with applied(pipe, fit):
        own = distances(drawn(pipe), full)
    with applied(pipe, swapped):
        other = distances(drawn(pipe), full)
    assert all(2 * a < b for a, b in zip(own, other, strict=True))
    assert fit.weights != audio.weights


def test_a_held_call_gives_the_velocities_of_all_latents():
    pipe = paired(bend=0.4)
    full = drawn(pipe)
    call = {"num_inference_steps": STEPS, "output_type": "latent"}
    with drive(pipe, generator=torch.Generator().manual_seed(0), **call) as run:
        x, grid = run.noise, [one.times for one in run.latents]
        for n in range(STEPS):
            v = run.evaluate(x, n)
            parts = zip(run.latents, grid, strict=True)
            x = torch.cat([(x + (g[n + 1] - g[n]) * v)[one.place] for one, g in parts], dim=-1)
        ends = run.output(x)
    for got, expected in zip((ends.frames, ends.audio), full, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_a_stopped_fit_goes_on_to_the_same_plan(fit, tmp_path):
    pipe = paired(bend=0.4)
    first = fitted_to(pipe, resume=tmp_path / "runs")
    again = fitted_to(pipe, resume=tmp_path / "runs")
    assert first.latents == again.latents == fit.latents
    assert first.weights == again.weights == fit.weights


@pytest.mark.parametrize("options", [{"target": "flow"}, {"evaluations": None, "like_steps": 12}])
def test_a_joint_model_is_not_fitted_to_the_flow(options):
    with pytest.raises(PlanError, match="audio"):
        fitted_to(paired(bend=0.4), **options)


@pytest.mark.slow
def test_a_quality_may_be_asked_for():
    plan = fitted_to(paired(bend=0.4), evaluations=None, min_psnr=40)
    assert plan.certificate.psnr >= 40
    assert set(plan.latents) == {"audio"}


def minimax_plan(pipe: Any) -> Plan:
    """The plan of nine seeds of the tiny MiniMax-H3, whose call has no prompt."""
    call = minimax_call(STEPS)
    return fit_plan(pipe, None, seeds=range(100, 109), evaluations=6, search=False, **call)


def ltx2_plan(pipe: Any) -> Plan:
    call = LTX2.call()
    del call["prompt"]
    return fitted_to(pipe, output_type="latent", **call)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), [("minimax-h3", minimax_plan), ("ltx2", ltx2_plan)])
def test_real_joint_pipelines_are_fitted_in_both_latents(name, make):
    pipe = BUILT[name]()
    plan = make(pipe)
    times, sound = grids(pipe)
    instant = instant_plan(times, EVALUATIONS, latents={"audio": sound})
    for seed in range(2):
        full = drawn(pipe, seed)
        with applied(pipe, instant):
            before = distances(drawn(pipe, seed), full)
        with applied(pipe, plan):
            now = distances(drawn(pipe, seed), full)
        assert all(a < b for a, b in zip(now, before, strict=True))


# --- learning from full runs


def taught(pipe: Any, monkeypatch: pytest.MonkeyPatch, folder: Any) -> Plan:
    """The plan that two full runs of a pipeline teach."""
    monkeypatch.setenv("TACACHE_HOME", str(folder))
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    for seed in (100, 101):
        drawn(pipe, seed)
        assert pipe.scheduler.run_plan is None
    drawn(pipe, 102)
    (stored,) = PlanStore().plans()
    return stored.plan


@pytest.mark.parametrize(
    "build",
    [lambda: paired(bend=0.4), minimax, pytest.param(LTX2.build, marks=pytest.mark.slow)],
)
def test_a_plan_is_learned_for_all_latents(build, monkeypatch, tmp_path):
    pipe = build()
    full = drawn(pipe, 7)
    plan = taught(pipe, monkeypatch, tmp_path)
    found = drawn(pipe, 7)
    assert pipe.scheduler.run_plan == plan.of_latent()
    assert plan.latents["audio"].certificate.drift < 0.1
    remove(pipe)
    times, sound = grids(pipe)
    with applied(pipe, instant_plan(times, EVALUATIONS, latents={"audio": sound})):
        instant = drawn(pipe, 7)
    assert all(a < b for a, b in zip(distances(found, full), distances(instant, full), strict=True))


def pictures(pipe: Any, seed: int) -> Any:
    """What a whole call makes, with its sound."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(pipe, PairedPipeline):
        return pipe(num_inference_steps=STEPS, generator=generator)
    size = {"height": 32, "width": 32, "num_inference_steps": STEPS + 1, "output_type": "np"}
    return pipe(prompt="waves on a beach", generator=generator, **size)


@pytest.mark.parametrize(
    "build", [lambda: paired(bend=0.4), pytest.param(minimax_h3, marks=pytest.mark.slow)]
)
def test_a_learned_certificate_says_what_calls_give(build, monkeypatch, tmp_path):
    """The held-out sample is the first, whose noise the pipeline would not draw again."""
    monkeypatch.setenv("TACACHE_HOME", str(tmp_path))
    pipe = build()
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    full, _ = pictures(pipe, 100), pictures(pipe, 101)
    planned = pictures(pipe, 100)
    assert pipe.scheduler.run_plan.evaluations == EVALUATIONS
    (plan,) = (one.plan for one in PlanStore().plans())
    pair = (torch.from_numpy(pixels_of(made))[None] for made in (full, planned))
    assert plan.certificate.psnr == pytest.approx(float(psnr(*pair)), abs=0.01)
    heard = (sounds_of(made)["audio"][None] for made in (full, planned))
    certificate = plan.latents["audio"].certificate
    assert certificate.spectral_distance == pytest.approx(
        float(spectral_distance(*heard)), rel=0.01
    )


def test_what_came_in_a_state_is_not_kept(monkeypatch, tmp_path, caplog):
    """A modular call may go on from what other blocks have made, which is not among its inputs."""
    monkeypatch.setenv("TACACHE_HOME", str(tmp_path))
    pipe, state, call = minimax(), PipelineState(), minimax_call(STEPS)
    state.set("prompt_embeds", call.pop("prompt_embeds"))
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    pipe(state, **call)
    assert pipe.scheduler.run_plan.evaluations == EVALUATIONS
    assert "its prompt_embeds came in a state" in caplog.text
