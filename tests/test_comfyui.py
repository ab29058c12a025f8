"""The nodes of `comfyui/`, on a stand-in of ComfyUI and, with COMFYUI_PATH, on its real code."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from tests.comfy_calls import carried, differences
from tests.comfy_stand_in import CHECKOUT, ROOT, SHAPE, Checkout, StandIn, ToyNet
from tests.support import mixture, noise_of

from tacache import (
    HostError,
    Plan,
    PlanError,
    Profile,
    ProfileError,
    instant_plan,
    make_plan,
    time_grid,
)
from tacache.instant import LIKE_STEPS, default_evaluations
from tacache.prompts import read_prompts
from tacache.storage.store import PlanStore

STEPS = 12
HOSTS = {"stand-in": StandIn, **({"ComfyUI": Checkout} if CHECKOUT else {})}
NODE_JS = shutil.which("node")
NODES = ("TACachePrompts", "TACacheCalibrate", "TACachePlan", "TACacheFit", "TACacheSampler")


@pytest.fixture(params=HOSTS)
def comfy(request, monkeypatch, tmp_path):
    return HOSTS[request.param](monkeypatch, tmp_path)


def node(comfy, name):
    return comfy.package.NODE_CLASS_MAPPINGS[name]()


def prompt(push=0.0, **options):
    """A conditioning as ComfyUI has it: pairs of a tensor and options."""
    return [[torch.full((1, 2, 3), push), options]]


def empty(batch=1, shape=SHAPE):
    return {"samples": torch.zeros(batch, *shape)}


def sigmas_of(steps=STEPS, shift=3.0):
    return torch.tensor(time_grid(steps, shift))


def flow(shape=SHAPE):
    return mixture(shape)


def custom_sample(comfy, model, sampler, sigmas, **given):
    """As SamplerCustom does it."""
    fields = {"latent": empty(), "cfg": 1.0, "positive": prompt(), "negative": prompt()}
    fields = {**fields, "seed": 0, "callback": None, **given}
    latent = fields["latent"]
    noise = torch.randn(latent["samples"].shape, generator=torch.manual_seed(fields["seed"]))
    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(fields["positive"], fields["negative"])
    guider.set_cfg(fields["cfg"])
    with torch.inference_mode():
        return guider.sample(
            noise,
            latent["samples"],
            sampler,
            sigmas,
            denoise_mask=latent.get("noise_mask"),
            callback=fields["callback"],
            disable_pbar=True,
            seed=fields["seed"],
        )


def euler(comfy):
    """Plain Euler as a sampler of ComfyUI."""

    def steps(model, x, sigmas, extra_args=None, callback=None, disable=None):
        for i in range(len(sigmas) - 1):
            denoised = model(x, sigmas[i] * x.new_ones([len(x)]), **extra_args)
            x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
        return x

    if comfy.name == "ComfyUI":
        return comfy.samplers.ksampler("euler")
    return comfy.samplers.KSAMPLER(steps)


def evaluated(model):
    """The levels the network was asked at."""
    return sorted({round(t, 4) for t, _ in model.model.diffusion_model.calls}, reverse=True)


def calibrated(comfy, model=None, **changes):
    """A profile by the node, which gets all its inputs as lists."""
    inputs = {
        "model": [model or comfy.model(flow())],
        "positive": [prompt(0.1), prompt(-0.2)],
        "negative": [prompt()],
        "cfg": [1.0],
        "latent_image": [empty()],
        "sigmas": [sigmas_of()],
        "first_seed": [0],
        "seeds": [2],
        "name": ["toy"],
    }
    with torch.inference_mode():
        return node(comfy, "TACacheCalibrate").calibrate(**{**inputs, **changes})


def planned(comfy, profile=None, **changes):
    inputs = {"profile_file": "none", "by": "evaluations", "evaluations": 5, "speedup": 3.0}
    inputs |= {"tau_k": 0.1, "tau_d": 0.5, "max_skip": 12, "name": "", "profile": profile}
    return node(comfy, "TACachePlan").plan(**{**inputs, **changes})


@pytest.fixture(scope="module")
def profile():
    from tacache import calibrate

    return calibrate(flow(), noise_of(3, SHAPE), sigmas_of().tolist())


def sampler(comfy, source, evaluations=5):
    name = "plan" if isinstance(source, Plan) else "profile"
    made = node(comfy, "TACacheSampler").sampler("none", evaluations, **{name: source})
    return made[0]


@pytest.mark.skipif(not CHECKOUT, reason="COMFYUI_PATH names no checkout of ComfyUI")
def test_calls_of_the_real_code_carry_what_those_of_the_stand_in_do():
    assert list(differences(carried(StandIn), carried(Checkout))) == []


@pytest.mark.parametrize(
    ("change", "names"),
    [({}, []), ({"seed": "str"}, ["extra_args.seed"]), ({"new": {}}, ["extra_args.new"])],
)
def test_each_thing_that_real_calls_carry_otherwise_is_named(change, names):
    expected = carried(StandIn)
    real = {**expected, "extra_args": {**expected["extra_args"], **change}}
    assert [line.split()[2].rstrip(":") for line in differences(expected, real)] == names


# The contract of a node


def test_the_folder_exports_its_nodes(comfy):
    package = comfy.package
    assert tuple(package.NODE_CLASS_MAPPINGS) == NODES
    assert package.NODE_DISPLAY_NAME_MAPPINGS["TACacheSampler"] == "TACache Sampler"
    assert package.NODE_DISPLAY_NAME_MAPPINGS.keys() == package.NODE_CLASS_MAPPINGS.keys()


@pytest.mark.parametrize("name", NODES)
def test_a_node_has_what_comfyui_asks_for(comfy, name):
    cls = comfy.package.NODE_CLASS_MAPPINGS[name]
    assert callable(getattr(cls, cls.FUNCTION))
    assert cls.CATEGORY == "sampling/tacache"
    assert cls.DESCRIPTION.endswith(".")
    assert all(isinstance(kind, str) for kind in cls.RETURN_TYPES)
    inputs = cls.INPUT_TYPES()
    assert set(inputs) <= {"required", "optional"}
    for fields in inputs.values():
        for field in fields.values():
            assert isinstance(field[0], str | list)
            assert len(field) == 1 or isinstance(field[1], dict)
            limits = field[1] if len(field) > 1 else {}
            if "default" in limits and "min" in limits:
                assert limits["min"] <= limits["default"] <= limits["max"]


# The sampler


def test_a_plan_of_anchors_alone_is_comfyuis_euler_to_the_bit(comfy):
    sigmas = sigmas_of()
    full = sampler(comfy, Plan.full(sigmas.tolist()))
    found, expected = (
        custom_sample(comfy, comfy.model(flow()), one, sigmas, latent=empty(2), cfg=3.0)
        for one in (full, euler(comfy))
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("cfg", [1.0, 3.5])
def test_a_plan_evaluates_its_anchors_only(comfy, profile, cfg):
    model, plan = comfy.model(flow()), make_plan(profile, evaluations=5)
    found = custom_sample(comfy, model, sampler(comfy, plan), sigmas_of(), cfg=cfg)
    assert evaluated(model) == [round(plan.times[n], 4) for n in plan.anchors]
    full = custom_sample(comfy, comfy.model(flow()), euler(comfy), sigmas_of(), cfg=cfg)
    assert 0 < (found - full).norm() < 0.3 * full.norm()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 8, 12, 30, 200])
def test_a_profile_gives_as_many_evaluations_on_any_sigmas(comfy, profile, steps):
    model = comfy.model(flow())
    custom_sample(comfy, model, sampler(comfy, profile, 6), sigmas_of(steps, shift=2.0))
    assert len(evaluated(model)) == min(6, steps)


def test_a_batch_is_as_each_alone(comfy, profile):
    latent = {"samples": noise_of(3, SHAPE, torch.float32, seed=4)}
    sigmas, made = sigmas_of()[4:], sampler(comfy, profile)
    noise = torch.randn(3, *SHAPE, generator=torch.manual_seed(1))
    results = []
    for chosen in (slice(0, 3), slice(1, 2)):
        guider = comfy.samplers.CFGGuider(comfy.model(flow()))
        guider.set_conds(prompt(), prompt())
        part = latent["samples"][chosen]
        results.append(guider.sample(noise[chosen], part, made, sigmas, disable_pbar=True))
    assert torch.allclose(results[0][1:2], results[1], atol=1e-5)


@pytest.mark.parametrize("source", ["plan", "profile"])
def test_denoise_below_one_starts_midway(comfy, profile, source):
    given = make_plan(profile, evaluations=5) if source == "plan" else profile
    latent = {"samples": noise_of(1, SHAPE, torch.float32, seed=2)}
    sigmas = sigmas_of(20)[-(STEPS + 1) :]  # as BasicScheduler does for denoise=0.6
    model = comfy.model(flow())
    found = custom_sample(comfy, model, sampler(comfy, given), sigmas, latent=latent)
    full = custom_sample(comfy, comfy.model(flow()), euler(comfy), sigmas, latent=latent)
    assert evaluated(model)[0] == round(float(sigmas[0]), 4) < 1
    assert len(evaluated(model)) < STEPS
    assert (found - full).norm() < 0.1 * full.norm()


def test_any_resolution(comfy):
    (profile,) = calibrated(comfy)["result"]
    large = (4, 10, 6)
    found = custom_sample(
        comfy, comfy.model(flow(large)), sampler(comfy, profile), sigmas_of(),
        latent=empty(2, large),
    )  # fmt: skip
    assert found.shape == (2, *large)
    assert torch.isfinite(found).all()


def test_no_sigmas_leave_the_latent_alone(comfy, profile):
    made = sampler(comfy, profile)
    x = torch.zeros(1, *SHAPE)
    assert made.sampler_function(None, x, torch.zeros(0), **made.extra_options) is x


def test_previews_come_at_every_step(comfy, profile):
    seen = []

    def callback(step, x0, x, total):
        seen.append((step, total, x0.clone()))

    made, model = sampler(comfy, profile), comfy.model(flow())
    found = custom_sample(comfy, model, made, sigmas_of(), callback=callback)
    assert [(step, total) for step, total, _ in seen] == [(i, STEPS) for i in range(STEPS)]
    distance = [float((x0 - found).norm()) for _, _, x0 in seen]
    assert distance[-1] < 1e-4
    assert distance[0] > distance[STEPS // 2] > distance[-1]


@pytest.mark.parametrize("where", [0, 3, 7])
def test_a_cancelled_run_stops_at_once_and_the_next_is_whole(comfy, profile, where):
    plan = make_plan(profile, evaluations=5)
    made, model = sampler(comfy, plan), comfy.model(flow())

    def callback(step, x0, x, total):
        if step == where:
            raise comfy.interrupted

    with pytest.raises(comfy.interrupted):
        custom_sample(comfy, model, made, sigmas_of(), callback=callback)
    assert len(evaluated(model)) == sum(n <= where for n in plan.anchors)
    again = custom_sample(comfy, model, made, sigmas_of())
    other = custom_sample(comfy, comfy.model(flow()), made, sigmas_of())
    assert torch.equal(again, other)


def test_a_model_that_is_no_flow_is_refused(comfy, profile):
    model = comfy.model(flow(), comfy.other_sampling())
    with pytest.raises(HostError, match="needs a rectified-flow model"):
        calibrated(comfy, model)
    made = sampler(comfy, profile)
    wrapped = SimpleNamespace(inner_model=SimpleNamespace(inner_model=model.model))
    with pytest.raises(HostError, match="EPS"):
        made.sampler_function(wrapped, torch.zeros(1, 4), sigmas_of(), **made.extra_options)


def test_the_numbers_of_another_network_are_refused(comfy):
    class OtherNet(ToyNet):
        pass

    (profile,) = calibrated(comfy)["result"]
    model = comfy.model(flow(), net=OtherNet)
    with pytest.raises(HostError, match="measured on ToyNet, the model is OtherNet"):
        custom_sample(comfy, model, sampler(comfy, profile), sigmas_of())


@pytest.mark.parametrize("moving", [False, True])
def test_inpainting_keeps_what_lies_outside_the_mask(comfy, profile, moving):
    mask = torch.zeros(1, 1, *SHAPE[1:])
    mask[..., 2:] = 1
    latent = {"samples": noise_of(1, SHAPE, torch.float32, seed=6), "noise_mask": mask}
    model = comfy.model(flow())
    if moving:  # a mask that opens on the way, as differential diffusion has it
        model.model_options["denoise_mask_function"] = lambda sigma, given, extra_options: (
            given * (sigma[0] < 0.8)
        )
    plan = make_plan(profile, evaluations=5)
    found = custom_sample(comfy, model, sampler(comfy, plan), sigmas_of(), latent=latent)
    outside = (mask == 0).expand(1, *SHAPE)
    assert torch.allclose(found[outside], latent["samples"][outside], atol=1e-5)
    assert not torch.allclose(found[~outside], latent["samples"][~outside], atol=1e-2)
    assert len(evaluated(model)) == 5


def test_a_prompt_that_ends_midway_gets_an_anchor_there(comfy, profile):
    sigmas = sigmas_of()
    positive = prompt(0.5, start_percent=0.0, end_percent=0.4) + prompt(
        -0.5, start_percent=0.4, end_percent=1.0
    )
    model, plan = comfy.model(flow()), make_plan(profile, evaluations=4)
    custom_sample(comfy, model, sampler(comfy, plan), sigmas, positive=positive)
    first = next(i for i, t in enumerate(sigmas.tolist()) if t < 0.6)
    wanted = {*plan.anchors, first, first + 1}
    assert evaluated(model) == [round(float(sigmas[n]), 4) for n in sorted(wanted)]
    assert len(wanted) > 4


def test_a_controlnet_that_ends_midway_gets_an_anchor_there(comfy):
    changes = comfy.package.nodes.follow_plan.__globals__["changes"]
    last = SimpleNamespace(timestep_range=(1.0, 0.3), previous_controlnet=None)
    first = SimpleNamespace(timestep_range=None, previous_controlnet=last)
    guider = SimpleNamespace(conds={"positive": [{"control": first}, {}]})
    assert changes(guider, [1.0, 0.6, 0.2, 0.0]) == (0.3,)
    assert changes(SimpleNamespace(), [1.0, 0.5, 0.0]) == ()


# Where a sampler's numbers come from


def test_a_sampler_takes_a_file(comfy, profile):
    plan = make_plan(profile, evaluations=4)
    profile.save(comfy.folder / "toy.profile.json")
    plan.save(comfy.folder / "sub" / "toy.plan.json")
    offered = node(comfy, "TACacheSampler").INPUT_TYPES()["required"]["file"][0]
    assert offered == ["stored or instant", "none", "sub/toy.plan.json", "toy.profile.json"]
    for file, evaluations in (("sub/toy.plan.json", 4), ("toy.profile.json", 7)):
        model = comfy.model(flow())
        (made,) = node(comfy, "TACacheSampler").sampler(file, 7)
        custom_sample(comfy, model, made, sigmas_of())
        assert len(evaluated(model)) == evaluations


def test_a_changed_file_is_read_again(comfy, profile):
    import os

    cls = comfy.package.NODE_CLASS_MAPPINGS["TACacheSampler"]
    path = profile.save(comfy.folder / "toy.profile.json")
    before = cls.IS_CHANGED(file=path.name, evaluations=5)
    assert before == cls.IS_CHANGED(file=path.name)
    os.utime(path, (before + 10, before + 10))
    assert cls.IS_CHANGED(file=path.name) != before
    assert cls.IS_CHANGED(file="none") == 0
    assert comfy.package.NODE_CLASS_MAPPINGS["TACachePlan"].IS_CHANGED() == 0


def test_a_sampler_takes_one_source_only(comfy, profile):
    made = node(comfy, "TACacheSampler").sampler
    with pytest.raises(PlanError, match="exactly one of plan, profile, file: none is given"):
        made("none", 5)
    with pytest.raises(PlanError, match="profile and file are given"):
        made("toy.plan.json", 5, profile=profile)
    with pytest.raises(HostError, match=r"there is no 'gone.plan.json' in .*calibrate"):
        made("gone.plan.json", 5)


class Weighed(ToyNet):
    """A network with a weight, so that its fingerprint can be told."""

    def __init__(self, **options):
        super().__init__(**options)
        self.bias = torch.nn.Parameter(torch.tensor([0.25, 0.5]))


def followed(comfy, caplog, model, evaluations=5, sigmas=None, **given):
    """What is said of a run by the sampler's first choice, after it has run."""
    caplog.clear()
    (made,) = node(comfy, "TACacheSampler").sampler("stored or instant", evaluations)
    with caplog.at_level("INFO", "tacache.comfyui"):
        custom_sample(comfy, model, made, sigmas_of() if sigmas is None else sigmas, **given)
    assert len(evaluated(model)) == evaluations
    (said,) = [one.getMessage() for one in caplog.records if "followed" in one.getMessage()]
    return said


@pytest.mark.slow
def test_without_a_file_a_plan_is_instant_until_one_is_stored(comfy, caplog):
    model = comfy.model(flow(), net=Weighed)
    assert "an instant plan is followed, 5 of 12 steps" in followed(comfy, caplog, model)
    before = comfy.package.NODE_CLASS_MAPPINGS["TACacheSampler"].IS_CHANGED("stored or instant")
    made = fit(comfy, model)
    (stored,) = PlanStore().plans()
    assert stored.plan == made["result"][0]
    assert f"stored as {stored.name}" in made["ui"]["text"][0]
    assert comfy.package.NODE_CLASS_MAPPINGS["TACacheSampler"].IS_CHANGED(file="stored or instant")
    assert before == 0
    model.model.diffusion_model.calls.clear()
    assert followed(comfy, caplog, model) == f"the stored plan {stored.name} is followed"


# What other nodes put into a model's options
CHANGES = (
    {"sampler_post_cfg_function": [lambda seen: seen["denoised"]]},
    {"transformer_options": {"patches": {"attn1_patch": [lambda q, k, v, _: (q, k, v)]}}},
    {"transformer_options": {"wrappers": {"toy": {None: [lambda run, *inputs: run(*inputs)]}}}},
    {"transformer_options": {"rope_options": {"scale_x": 2.0}}},
)


@pytest.mark.slow
def test_a_stored_plan_is_followed_only_where_all_agrees(comfy, caplog):
    plain = comfy.model(flow(), net=Weighed)
    fit(comfy, plain)

    def said(model=None, **given):
        model = model or comfy.model(flow(), net=Weighed)
        model.model.diffusion_model.calls.clear()
        return followed(comfy, caplog, model, **given)

    assert "stored" in said()
    assert "instant" in said(cfg=2.0)
    assert "instant" in said(evaluations=6)
    wider = (*SHAPE[:-1], SHAPE[-1] + 2)
    assert "instant" in said(comfy.model(flow(wider), net=Weighed), latent=empty(1, wider))
    guided = [[tensor, {**options, "guidance": 3.5}] for tensor, options in prompt()]
    assert "instant" in said(positive=guided)
    assert "instant" in said(positive=prompt(area=(*SHAPE[1:], 0, 0)))
    other = comfy.model(flow(), net=Weighed)
    other.model.diffusion_model.bias.data += 1
    assert "instant" in said(other)
    for change in CHANGES:
        patched = comfy.model(flow(), net=Weighed)
        patched.model_options = {**patched.model_options, **change}
        assert "instant" in said(patched)
    pending = comfy.model(flow(), net=Weighed)
    pending.model.diffusion_model.weight_function = [lambda weight: weight]
    assert "instant" in said(pending)


def test_what_is_connected_comes_before_what_is_stored(comfy, profile):
    plan = make_plan(profile, evaluations=4)
    model = comfy.model(flow())
    (made,) = node(comfy, "TACacheSampler").sampler("stored or instant", 7, plan=plan)
    custom_sample(comfy, model, made, sigmas_of())
    assert len(evaluated(model)) == 4


# --- a quality in the place of evaluations


def near(comfy, caplog, model, sigmas=None, **quality):
    """What is said of a run that is asked for a quality, after it has run."""
    caplog.clear()
    (made,) = node(comfy, "TACacheSampler").sampler("stored or instant", 0, **quality)
    with caplog.at_level("INFO", "tacache.comfyui"):
        found = custom_sample(comfy, model, made, sigmas_of() if sigmas is None else sigmas)
    said = [one.getMessage() for one in caplog.records if one.name == "tacache.comfyui"]
    return " ".join(said), found


def test_nearness_to_the_flow_takes_an_instant_plan_with_times_of_its_own(comfy, caplog):
    model, sigmas = comfy.model(flow(), net=Weighed), sigmas_of(24)
    said, found = near(comfy, caplog, model, sigmas, like_steps=16)
    plan = instant_plan(sigmas.tolist(), LIKE_STEPS[16], target="flow")
    assert evaluated(model) == [round(t, 4) for t in plan.times[:-1]]
    assert "that was not measured" in said
    assert "TACache Fit makes a better one" in said
    chosen = custom_sample(comfy, comfy.model(flow(), net=Weighed), sampler(comfy, plan), sigmas)
    assert torch.equal(found, chosen)


def test_a_psnr_that_nothing_is_known_to_have_makes_all_steps(comfy, caplog):
    model = comfy.model(flow(), net=Weighed)
    said, _ = near(comfy, caplog, model, min_psnr=35.0)
    assert len(evaluated(model)) == 12
    assert "all 12 steps are made: no plan that skips some of them is known to reach" in said


def test_what_takes_part_unseen_gets_no_stored_plan_for_a_quality(comfy, caplog):
    model = comfy.model(flow(), net=Weighed)
    model.model_options |= CHANGES[0]
    said, _ = near(comfy, caplog, model, min_psnr=5.0)
    assert "stored plans do not know the model's" in said


@pytest.mark.slow
def test_the_fewest_evaluations_with_a_psnr_are_fitted_stored_and_followed(comfy, caplog):
    model = comfy.model(flow(), net=Weighed)
    decoded = []

    class Vae:
        def decode(self, latents):
            decoded.append(len(latents))
            return (latents[:, :3].movedim(1, -1) / 8 + 0.5).clamp(0, 1)

    asked = {"evaluations": [0], "min_psnr": [30.0], "psnr_of": ["p5"], "vae": [Vae()]}
    (plan,) = fit(comfy, model, **asked)["result"]
    assert decoded
    assert plan.certificate.p5_psnr >= 30
    assert plan.evaluations < 12
    model.model.diffusion_model.calls.clear()
    said, _ = near(comfy, caplog, model, min_psnr=30.0, psnr_of="p5")
    (stored,) = PlanStore().plans()
    assert said == f"the stored plan {stored.name} is followed"
    assert len(evaluated(model)) == plan.evaluations


@pytest.mark.slow
def test_nearness_to_the_flow_is_fitted(comfy):
    model = comfy.model(flow(), net=Weighed)
    (plan,) = fit(comfy, model, evaluations=[0], like_steps=[12])["result"]
    assert plan.certificate.equivalent_steps >= 12
    assert plan.evaluations < 12


def test_a_fit_without_a_number_has_the_usual_one(comfy):
    (plan,) = fit(comfy, comfy.model(flow()), evaluations=[0])["result"]
    assert plan.evaluations == default_evaluations(12)


def test_of_evaluations_and_qualities_one_is_given(comfy, profile):
    sampling = node(comfy, "TACacheSampler").sampler
    with pytest.raises(PlanError, match="not evaluations and like_steps"):
        sampling("stored or instant", 5, like_steps=28)
    with pytest.raises(PlanError, match="not like_steps and min_psnr"):
        sampling("stored or instant", 0, like_steps=28, min_psnr=35.0)
    with pytest.raises(PlanError, match="chooses among stored plans"):
        sampling("stored or instant", 0, profile=profile, like_steps=28)
    model = comfy.model(flow())
    with pytest.raises(PlanError, match="not evaluations and like_steps"):
        fit(comfy, model, like_steps=[28])
    with pytest.raises(PlanError, match="connect a vae"):
        fit(comfy, model, evaluations=[0], min_psnr=[35.0])
    assert not model.model.diffusion_model.calls


@pytest.mark.parametrize(("steps", "evaluations"), [(4, 2), (4, 3), (8, 5), (8, 6), (6, 13)])
def test_few_steps_follow_an_instant_plan(comfy, steps, evaluations):
    model, sigmas = comfy.model(flow()), sigmas_of(steps)
    (made,) = node(comfy, "TACacheSampler").sampler("stored or instant", evaluations)
    result = custom_sample(comfy, model, made, sigmas)
    assert len(evaluated(model)) == min(steps, evaluations)
    full = custom_sample(comfy, comfy.model(flow()), euler(comfy), sigmas)
    assert (result - full).norm() < 0.5 * full.norm()


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "evaluations"), [(4, 3), (8, 6)])
def test_few_steps_are_fitted_stored_and_followed(comfy, caplog, steps, evaluations):
    model, sigmas = comfy.model(flow(), net=Weighed), sigmas_of(steps)
    (plan,) = fit(comfy, model, sigmas=[sigmas], evaluations=[evaluations])["result"]
    assert (plan.steps, plan.evaluations) == (steps, evaluations)
    model.model.diffusion_model.calls.clear()
    said = followed(comfy, caplog, model, evaluations, sigmas=sigmas)
    (stored,) = PlanStore().plans()
    assert said == f"the stored plan {stored.name} is followed"


@pytest.mark.slow
def test_a_store_that_takes_nothing_loses_no_fit(comfy, home):
    home.write_text("a file in the place of the folder")
    said = fit(comfy, comfy.model(flow()))["ui"]["text"][0]
    assert "not stored: " in said
    assert (comfy.folder / "toy.plan.json").exists()


@pytest.mark.parametrize(
    ("name", "field"), [("TACacheSampler", "file"), ("TACachePlan", "profile_file")]
)
def test_a_missing_file_is_named_before_anything_runs(comfy, profile, name, field):
    cls = comfy.package.NODE_CLASS_MAPPINGS[name]
    profile.save(comfy.folder / "toy.profile.json")
    for there in (
        "none",
        "toy.profile.json",
        "stored or instant",
        None,
    ):  # None: the name comes from another node
        assert cls.VALIDATE_INPUTS(**{field: there}) is True
    assert cls.VALIDATE_INPUTS() is True
    assert cls.IS_CHANGED(**{field: None}) == 0
    said = cls.VALIDATE_INPUTS(**{field: "gone.profile.json"})
    assert said.startswith("there is no 'gone.profile.json' in ")


# Models of several latents in one run


PACKED = (1, 24)  # pictures and sound, one behind the other


def joint_prompt(push=0.0):
    """As a model of pictures and sound, which share the sigmas, has it while it runs."""
    shapes = SimpleNamespace(cond=[(1, 4, 4), (1, 2, 4)])
    crossing = SimpleNamespace(cond=torch.full((1, 2, 3), push))
    return prompt(push, model_conds={"c_crossattn": crossing, "latent_shapes": shapes})


@pytest.fixture
def joint(monkeypatch, tmp_path):
    """The stand-in, which takes a prompt with what ComfyUI makes of one."""
    comfy = StandIn(monkeypatch, tmp_path)
    model, given = comfy.model(flow(PACKED)), {"latent": empty(shape=PACKED)}
    given |= {"positive": joint_prompt(0.1), "negative": joint_prompt()}
    return SimpleNamespace(comfy=comfy, model=model, given=given)


def test_pictures_with_sound_follow_an_instant_plan(joint, caplog):
    caplog.set_level("INFO", logger="tacache.comfyui")
    own = node(joint.comfy, "TACacheSampler").sampler("stored or instant", 6)[0]
    found = custom_sample(joint.comfy, joint.model, own, sigmas_of(), **joint.given)
    assert len(evaluated(joint.model)) == 6
    assert "stored plans do not know several latents in one run" in caplog.text
    plan = instant_plan(sigmas_of().tolist(), 6)
    by_plan = sampler(joint.comfy, plan)
    assert torch.equal(
        custom_sample(joint.comfy, joint.model, by_plan, sigmas_of(), **joint.given), found
    )


def test_pictures_with_sound_follow_nothing_that_was_measured_for_one(joint, profile):
    plan = make_plan(profile, evaluations=6)
    quality = node(joint.comfy, "TACacheSampler").sampler("stored or instant", 0, like_steps=20)
    for made in (sampler(joint.comfy, plan), sampler(joint.comfy, profile), quality[0]):
        with pytest.raises(HostError, match="pictures and sound in one run"):
            custom_sample(joint.comfy, joint.model, made, sigmas_of(), **joint.given)
    assert not joint.model.model.diffusion_model.calls


@pytest.mark.parametrize("make", ["calibrate", "fit"])
def test_pictures_with_sound_are_neither_measured_nor_fitted(comfy, make):
    model, nested = comfy.model(flow()), {"samples": SimpleNamespace(is_nested=True)}
    with pytest.raises(HostError, match="pictures and sound"):
        {"calibrate": calibrated, "fit": fit}[make](comfy, model, latent_image=[nested])
    assert not model.model.diffusion_model.calls


# Calibrate, plan, fit


@pytest.mark.parametrize("levels", [0, 1])
def test_sigmas_without_a_step_are_refused(comfy, levels):
    sigmas = [torch.ones(levels)]  # BasicScheduler gives none with denoise 0
    model = comfy.model(flow())
    with pytest.raises(HostError, match=f"the sigmas have {levels} levels"):
        calibrated(comfy, model, sigmas=sigmas)
    with pytest.raises(HostError, match=f"the sigmas have {levels} levels"):
        fit(comfy, model, sigmas=sigmas)
    assert not model.model.diffusion_model.calls


def test_a_calibration_measures_every_prompt_with_every_seed(comfy):
    model = comfy.model(flow())
    found = calibrated(comfy, model)
    (profile,) = found["result"]
    assert profile.samples == 4
    assert len(model.model.diffusion_model.calls) == 4 * STEPS
    assert Profile.load(comfy.folder / "toy.profile.json") == profile
    assert found["ui"]["text"] == ["4 samples, 12 steps: toy.profile.json"]
    assert profile.origin.kind == "comfyui"
    assert profile.origin.denoiser == "ToyNet"
    assert profile.origin.call == {"cfg": 1.0}
    assert profile.times == tuple(sigmas_of().tolist())


def test_a_calibration_measures_what_the_flow_does(comfy):
    from tacache import calibrate

    seeds = [torch.randn(1, *SHAPE, generator=torch.manual_seed(seed)) for seed in range(3)]
    expected = calibrate(flow(), torch.cat(seeds), sigmas_of().tolist())
    found = calibrated(comfy, positive=[prompt()], seeds=[3])["result"][0]
    assert found.magnitude == pytest.approx(expected.magnitude, abs=1e-3)
    assert found.direction == pytest.approx(expected.direction, abs=1e-3)


def test_a_calibration_adds_to_another(comfy):
    (first,) = calibrated(comfy)["result"]
    (both,) = calibrated(comfy, first_seed=[7], add_to=[first])["result"]
    assert both.samples == 8


def test_a_calibration_knows_where_prompts_change(comfy):
    positive = prompt(0.5, start_percent=0.0, end_percent=0.4) + prompt(-0.5)
    (found,) = calibrated(comfy, positive=[positive])["result"]
    assert found.breaks == pytest.approx((0.6,))


def test_a_calibration_shows_its_progress(comfy):
    seen = []
    comfy.on_progress(lambda value, total, preview: seen.append((value, total)))
    calibrated(comfy)
    assert seen == [(i, 4 * STEPS) for i in range(1, 4 * STEPS + 1)]


def test_a_cancelled_calibration_keeps_its_finished_runs(comfy, caplog):
    def cancel_at(limit):
        def hook(value, total, preview):
            if value == limit:
                raise comfy.interrupted

        return hook

    comfy.on_progress(cancel_at(2))
    with pytest.raises(comfy.interrupted):
        calibrated(comfy)
    assert not list(comfy.folder.glob("*"))
    comfy.on_progress(cancel_at(2 * STEPS + 3))
    with pytest.raises(comfy.interrupted):
        calibrated(comfy)
    assert [path.name for path in comfy.folder.glob("*")] == ["toy.cancelled.profile.json"]
    assert Profile.load(comfy.folder / "toy.cancelled.profile.json").samples == 2
    assert "toy.cancelled.profile.json" in caplog.text


def test_prompts_and_negative_prompts_go_in_pairs(comfy):
    negative = [prompt(0.1), prompt(0.2)]
    assert calibrated(comfy, negative=negative, cfg=[2.0])["result"][0].samples == 4
    with pytest.raises(HostError, match="3 negative conditionings for 2 positive"):
        calibrated(comfy, negative=[prompt()] * 3)


@pytest.mark.parametrize("name", ["", "../toy", "/tmp/toy", "a/../../toy"])
def test_a_name_that_leads_out_of_the_folder_is_refused_before_any_work(comfy, name):
    model = comfy.model(flow())
    with pytest.raises(HostError, match="is no name for a file"):
        calibrated(comfy, model, name=[name])
    assert not model.model.diffusion_model.calls


@pytest.mark.parametrize(("by", "evaluations"), [("evaluations", 5), ("speedup", 4)])
def test_a_plan_by_budget(comfy, profile, by, evaluations):
    found = planned(comfy, profile, by=by)
    (plan,) = found["result"]
    assert plan.evaluations == evaluations
    assert found["ui"]["text"][0].startswith(f"{evaluations} of 12 steps evaluated: 0, 1")
    assert not comfy.folder.exists()


def test_a_plan_by_thresholds_from_a_file_under_a_name(comfy, profile):
    profile.save(comfy.folder / "toy.profile.json")
    found = planned(comfy, by="thresholds", profile_file="toy.profile.json", name="mine")
    (plan,) = found["result"]
    assert plan == make_plan(profile, tau_k=0.1, tau_d=0.5)
    assert Plan.load(comfy.folder / "mine.plan.json") == plan
    with pytest.raises(ProfileError, match="exactly one of profile, profile_file"):
        planned(comfy, profile, profile_file="toy.profile.json")


def test_a_plan_for_other_sigmas(comfy, profile):
    (plan,) = planned(comfy, profile, sigmas=sigmas_of(20))["result"]
    assert (plan.steps, plan.evaluations) == (20, 5)


def fit(comfy, model, **changes):
    inputs = {"model": [model], "positive": [prompt(0.1), prompt(-0.2)], "negative": [prompt()]}
    inputs |= {"cfg": [1.0], "latent_image": [empty()], "sigmas": [sigmas_of()]}
    inputs |= {"first_seed": [0], "seeds": [2], "name": ["toy"]}
    inputs |= {"evaluations": [5], "max_evaluations": [1000]}
    with torch.inference_mode():
        return node(comfy, "TACacheFit").fit(**{**inputs, **changes})


@pytest.mark.slow
def test_a_fitted_plan_comes_closer_than_one_by_rates(comfy, profile):
    model = comfy.model(flow())
    (plan,) = fit(comfy, model)["result"]
    assert Plan.load(comfy.folder / "toy.plan.json") == plan
    assert plan.rule == "fitted"
    assert plan.evaluations == 5
    assert plan.certificate.evaluations_spent <= 1000
    assert len(model.model.diffusion_model.calls) <= 1000
    assert (plan.origin.kind, plan.origin.denoiser) == ("comfyui", "ToyNet")
    assert plan.origin.latent_shape == SHAPE
    given = {"latent": empty(8), "seed": 11, "positive": prompt(0.05)}
    full = custom_sample(comfy, comfy.model(flow()), euler(comfy), sigmas_of(), **given)
    drift = []
    for one in (plan, make_plan(profile, evaluations=5)):
        model = comfy.model(flow())
        found = custom_sample(comfy, model, sampler(comfy, one), sigmas_of(), **given)
        drift.append(float((found - full).norm()))
        assert len(evaluated(model)) == 5
    assert drift[0] < drift[1]


@pytest.mark.slow
def test_each_prompt_of_a_fit_is_evaluated_under_its_own_conditioning(comfy):
    asked = []

    class Watching(ToyNet):
        def forward(self, x, timestep, context=None, **options):
            asked.append(float(context.mean()))
            return super().forward(x, timestep, context, **options)

    fit(comfy, comfy.model(flow(), net=Watching))
    assert {round(push, 4) for push in asked} == {0.1, -0.2}


def test_a_file_of_something_else_is_named_before_any_work(comfy):
    comfy.folder.mkdir(parents=True)
    for kind in ("profile", "plan"):
        (comfy.folder / f"toy.{kind}.json").write_text("mine")
    model = comfy.model(flow())
    with pytest.raises(ProfileError, match="is there and is not a tacache-profile file"):
        calibrated(comfy, model)
    with pytest.raises(PlanError, match="is there and is not a tacache-plan file"):
        fit(comfy, model)
    assert not model.model.diffusion_model.calls


def test_a_cancelled_fit_stops_and_writes_nothing(comfy):
    def hook(value, total, preview):
        assert total == 1000
        if value == 30:
            raise comfy.interrupted

    comfy.on_progress(hook)
    model = comfy.model(flow())
    with pytest.raises(comfy.interrupted):
        fit(comfy, model)
    assert len(model.model.diffusion_model.calls) == 30
    assert not comfy.folder.exists()


def test_a_fit_refuses_what_it_cannot_hold(comfy):
    model = comfy.model(flow())
    for latent in (empty(2), {**empty(), "noise_mask": torch.ones(1, 1, 4, 4)}):
        with pytest.raises(HostError, match="batch size 1 without a mask"):
            fit(comfy, model, latent_image=[latent])
    with pytest.raises(PlanError, match="max_evaluations"):
        fit(comfy, model, max_evaluations=[10])
    assert not model.model.diffusion_model.calls


class Clip:
    """A text encoder that counts words."""

    def tokenize(self, text):  # noqa: D102
        return text.split()

    def encode_from_tokens_scheduled(self, tokens):  # noqa: D102
        return [[len(tokens), {}]]


def test_prompts_become_a_list_of_conditionings(comfy):
    encode = node(comfy, "TACachePrompts").encode
    assert encode(Clip(), "own", 8, " a b \n\nc\n") == ([[[2, {}]], [[1, {}]]],)
    (found,) = encode(Clip(), "calibration", 3, "")
    expected = [[[len(text.split()), {}]] for text in read_prompts("calibration")[:3]]
    assert found == expected
    with pytest.raises(HostError, match="there is no prompt"):
        encode(Clip(), "own", 8, "\n")


# What the editor shows


# The editor's own scripts in little: a node type gets our extension, is run, and tells what it has
EDITOR = """
import { extensions } from "./scripts/app.js";
import "./extensions/tacache/results.js";

class Node {
  size = [10, 10];
  computeSize() { return [200, 100]; }
  setSize(size) { this.size = size; }
  onExecuted(output) { this.seen = output; }
}
const [name, ...outputs] = process.argv.slice(2);
for (const extension of extensions) extension.beforeRegisterNodeDef(Node, { name });
const node = new Node();
for (const output of outputs) node.onExecuted(JSON.parse(output));
console.log(JSON.stringify(node));
"""
APP = """
export const extensions = [];
export const app = { registerExtension: (extension) => extensions.push(extension) };
"""
WIDGETS = """
export const ComfyWidgets = {
  STRING(node, name) {
    const widget = { name, options: {}, element: {} };
    (node.widgets ??= []).push(widget);
    return { widget };
  },
};
"""


def shown_on_node(comfy, tmp_path, name, *outputs):
    """The node of this name in the editor after it was run with these outputs."""
    web = (ROOT / "comfyui" / comfy.package.WEB_DIRECTORY).resolve()
    shutil.copytree(web, tmp_path / "extensions" / "tacache")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "app.js").write_text(APP)
    (tmp_path / "scripts" / "widgets.js").write_text(WIDGETS)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "editor.js").write_text(EDITOR)
    command = [NODE_JS, "editor.js", name, *(json.dumps(output) for output in outputs)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(not NODE_JS, reason="the editor's scripts need Node.js")
def test_what_a_node_says_appears_on_it(comfy, profile, tmp_path):
    first, second = (planned(comfy, profile, evaluations=k)["ui"] for k in (5, 4))
    found = shown_on_node(comfy, tmp_path, "TACachePlan", first, {"images": []}, second)
    (widget,) = found["widgets"]
    assert widget["value"] == second["text"][0]
    assert widget["value"].startswith("4 of 12 steps evaluated: 0, 1")
    assert found["seen"] == second  # what the editor does itself goes on
    assert found["size"] == [200, 100]
    # it is read only, is saved in no workflow, and is sent to no server
    assert widget["element"]["readOnly"]
    assert widget["serialize"] is widget["options"]["serialize"] is False


@pytest.mark.skipif(not NODE_JS, reason="the editor's scripts need Node.js")
@pytest.mark.parametrize("name", [*NODES, "PreviewAny"])
def test_the_nodes_that_say_something_have_a_place_for_it(comfy, tmp_path, name):
    cls = comfy.package.NODE_CLASS_MAPPINGS.get(name)
    says = getattr(cls, "OUTPUT_NODE", False)
    found = shown_on_node(comfy, tmp_path, name, {"text": ["a", "b"]})
    values = [widget["value"] for widget in found.get("widgets", [])]
    assert values == (["a\nb"] if says else [])


# The workflows


# The editor offers every JSON file of `workflows` as a template: those of the API lie apart
DRAWN = sorted((ROOT / "comfyui" / "workflows").glob("*.json"))
API = ROOT / "comfyui" / "api"
# the nodes of ComfyUI itself that the workflows use, with what they take and give
COMFYUI_NODES = {
    "UNETLoader": ({"unet_name", "weight_dtype"}, ["MODEL"]),
    "CheckpointLoaderSimple": ({"ckpt_name"}, ["MODEL", "CLIP", "VAE"]),
    "CLIPLoader": ({"clip_name", "type"}, ["CLIP"]),
    "TripleCLIPLoader": ({"clip_name1", "clip_name2", "clip_name3"}, ["CLIP"]),
    "DualCLIPLoader": ({"clip_name1", "clip_name2", "type"}, ["CLIP"]),
    "VAELoader": ({"vae_name"}, ["VAE"]),
    "CLIPTextEncode": ({"clip", "text"}, ["CONDITIONING"]),
    "FluxGuidance": ({"conditioning", "guidance"}, ["CONDITIONING"]),
    "EmptySD3LatentImage": ({"width", "height", "batch_size"}, ["LATENT"]),
    "EmptyHunyuanLatentVideo": ({"width", "height", "length", "batch_size"}, ["LATENT"]),
    "ModelSamplingAuraFlow": ({"model", "shift"}, ["MODEL"]),
    "ModelSamplingSD3": ({"model", "shift"}, ["MODEL"]),
    "ModelSamplingFlux": ({"model", "max_shift", "base_shift", "width", "height"}, ["MODEL"]),
    "BasicScheduler": ({"model", "scheduler", "steps", "denoise"}, ["SIGMAS"]),
    "CFGGuider": ({"model", "positive", "negative", "cfg"}, ["GUIDER"]),
    "BasicGuider": ({"model", "conditioning"}, ["GUIDER"]),
    "RandomNoise": ({"noise_seed"}, ["NOISE"]),
    "SamplerCustomAdvanced": (
        {"noise", "guider", "sampler", "sigmas", "latent_image"},
        ["LATENT", "LATENT"],
    ),
    "VAEDecode": ({"samples", "vae"}, ["IMAGE"]),
    "LTXAVTextEncoderLoader": ({"text_encoder", "ckpt_name", "device"}, ["CLIP"]),
    "LTXVAudioVAELoader": ({"ckpt_name"}, ["VAE"]),
    "LTXVConditioning": ({"positive", "negative", "frame_rate"}, ["CONDITIONING"] * 2),
    "EmptyLTXVLatentVideo": ({"width", "height", "length", "batch_size"}, ["LATENT"]),
    "LTXVEmptyLatentAudio": (
        {"frames_number", "frame_rate", "batch_size", "audio_vae"},
        ["LATENT"],
    ),
    "LTXVConcatAVLatent": ({"video_latent", "audio_latent"}, ["LATENT"]),
    "LTXVScheduler": (
        {"steps", "max_shift", "base_shift", "stretch", "terminal", "latent"},
        ["SIGMAS"],
    ),
    "LTXVSeparateAVLatent": ({"av_latent"}, ["LATENT", "LATENT"]),
    "LTXVAudioVAEDecode": ({"samples", "audio_vae"}, ["AUDIO"]),
    "CreateVideo": ({"images", "fps", "audio"}, ["VIDEO"]),
    "SaveVideo": ({"video", "filename_prefix", "format", "codec"}, []),
    "SaveImage": ({"images", "filename_prefix"}, []),
    "SaveAnimatedWEBP": (
        {"images", "filename_prefix", "fps", "lossless", "quality", "method"},
        [],
    ),
}


def fields_of(comfy, kind):
    """The names of a node's inputs, those it needs, and the types of its outputs."""
    if kind in COMFYUI_NODES:
        names, outputs = COMFYUI_NODES[kind]
        return names, names, outputs
    cls = comfy.package.NODE_CLASS_MAPPINGS[kind]
    inputs = cls.INPUT_TYPES()
    required = set(inputs["required"])
    return required | set(inputs.get("optional", {})), required, list(cls.RETURN_TYPES)


def is_link(value):
    return isinstance(value, list)


def kind_taken(comfy, kind, name):
    """The type of link one of our inputs takes."""
    inputs = comfy.package.NODE_CLASS_MAPPINGS[kind].INPUT_TYPES()
    return {**inputs["required"], **inputs.get("optional", {})}[name][0]


def test_there_are_workflows_for_the_editor_and_the_same_for_the_api():
    names = {path.name for path in DRAWN}
    models = {"flux", "ltx-2", "qwen-image", "sd3.5", "wan2.1", "z-image-turbo"}
    assert names == {"flux-calibrate.json", "flux-fit.json"} | {f"{m}-tacache.json" for m in models}
    assert names == {path.name for path in API.glob("*.json")}


@pytest.mark.parametrize("path", sorted(API.glob("*.json")), ids=lambda p: p.name)
def test_a_workflow_of_the_api_names_nodes_and_inputs_that_exist(comfy, path):
    graph = json.loads(path.read_text(encoding="utf-8"))
    assert any(one["class_type"] in NODES for one in graph.values())
    for one in graph.values():
        kind, inputs = one["class_type"], one["inputs"]
        known, required, _ = fields_of(comfy, kind)
        assert required <= inputs.keys() <= known, kind
        for name, value in inputs.items():
            if is_link(value):
                source, slot = value
                _, _, outputs = fields_of(comfy, graph[source]["class_type"])
                if kind in NODES:
                    assert kind_taken(comfy, kind, name) == outputs[slot]
                else:
                    assert slot < len(outputs)


@pytest.mark.parametrize("path", sorted(API.glob("*.json")), ids=lambda p: p.name)
def test_the_values_of_a_workflow_are_within_limits(comfy, path):
    graph = json.loads(path.read_text(encoding="utf-8"))
    for one in (one for one in graph.values() if one["class_type"] in NODES):
        inputs = comfy.package.NODE_CLASS_MAPPINGS[one["class_type"]].INPUT_TYPES()
        fields = {**inputs["required"], **inputs.get("optional", {})}
        for name, value in one["inputs"].items():
            kind, limits = (*fields[name], {})[:2]
            if is_link(value):
                continue
            if kind in ("INT", "FLOAT"):
                assert limits["min"] <= value <= limits["max"]
            elif isinstance(kind, list) and name not in ("file", "profile_file"):
                assert value in kind
            else:
                assert isinstance(value, str)


@pytest.mark.parametrize("path", DRAWN, ids=lambda p: p.name)
def test_a_workflow_of_the_editor_is_that_of_the_api(comfy, path):
    drawn = json.loads(path.read_text(encoding="utf-8"))
    graph = json.loads((API / path.name).read_text(encoding="utf-8"))
    nodes, links = {one["id"]: one for one in drawn["nodes"]}, drawn["links"]
    assert {str(i): one["type"] for i, one in nodes.items()} == {
        i: one["class_type"] for i, one in graph.items()
    }
    assert drawn["last_node_id"] == max(nodes)
    assert drawn["last_link_id"] == max(link[0] for link in links)
    found = {i: {} for i in graph}
    for number, source, slot, target, place, kind in links:
        entry = nodes[target]["inputs"][place]
        assert (entry["link"], entry["type"]) == (number, kind)
        assert number in nodes[source]["outputs"][slot]["links"]
        assert nodes[source]["outputs"][slot]["type"] == kind
        found[str(target)][entry["name"]] = [str(source), slot]
    for i, one in graph.items():
        assert found[i] == {n: v for n, v in one["inputs"].items() if is_link(v)}
        values = [v for v in one["inputs"].values() if not is_link(v)]
        drawn_values = nodes[int(i)].get("widgets_values", [])
        extra = ["fixed", "randomize", "image"]  # what the editor adds of its own
        assert [v for v in drawn_values if v not in extra or v in values] == values


class ToyLoader:
    """In place of a loader of files; the workflow's other nodes are ComfyUI's own."""

    made = None
    FUNCTION, CATEGORY = "load", "toy"

    @classmethod
    def INPUT_TYPES(cls):  # noqa: D102, N802
        return {"required": {}}

    def load(self, **_):  # noqa: D102
        return (self.made,)


class ToyClip(Clip):
    """A text encoder that gives tensors."""

    def encode_from_tokens_scheduled(self, tokens):  # noqa: D102
        return prompt(0.01 * len(tokens))


def execute(comfy, model, graphs):
    """Run workflows in ComfyUI's own executor; what each showed, and why any was refused."""
    import asyncio

    import execution
    import nodes

    vae = SimpleNamespace(decode=lambda latent: latent[:, :3].movedim(1, -1).clamp(0, 1))
    loaders = {"UNETLoader": model, "DualCLIPLoader": ToyClip(), "VAELoader": vae}
    for name, made in loaders.items():
        outputs = tuple(COMFYUI_NODES[name][1])
        loader = type(name, (ToyLoader,), {"made": made, "RETURN_TYPES": outputs})
        comfy.monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, name, loader)
    for name, cls in comfy.package.NODE_CLASS_MAPPINGS.items():
        comfy.monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, name, cls)
    shown, failed = {}, []

    def send_sync(event, data, sid=None):
        if event == "executed" and data["output"]:
            shown[data["node"]] = data["output"]
        if event == "execution_error":
            failed.append(data["exception_message"])

    async def run():
        for extra in ("nodes_custom_sampler", "nodes_flux", "nodes_sd3", "nodes_model_advanced"):
            path = f"{CHECKOUT}/comfy_extras/{extra}.py"
            assert await nodes.load_custom_node(path, module_parent="comfy_extras")
        server = SimpleNamespace(client_id="toy", send_sync=send_sync, last_node_id=None)
        caches = {"lru": 0, "ram": 0}
        executor = execution.PromptExecutor(server, execution.CacheType.CLASSIC, caches)
        for number, graph in enumerate(graphs):
            valid, _, outputs, problems = await execution.validate_prompt("1", graph, None)
            wrong = [error for one in problems.values() for error in one["errors"]]
            failed.extend(f"{error['message']}: {error['details']}" for error in wrong)
            if valid:
                await executor.execute_async(graph, str(number), {"client_id": "toy"}, outputs)

    asyncio.run(run())
    return shown, failed


def small(name, steps=STEPS):
    """A workflow of the folder, at a size for tests."""
    graph = json.loads((API / f"{name}.json").read_text(encoding="utf-8"))
    for one in graph.values():
        if one["class_type"] in ("EmptySD3LatentImage", "ModelSamplingFlux"):
            one["inputs"] |= {"width": 64, "height": 64}
        if one["class_type"] == "BasicScheduler":
            one["inputs"]["steps"] = steps
        if one["class_type"] == "TACachePrompts":
            one["inputs"]["count"] = 3
        if "evaluations" in one["inputs"]:
            one["inputs"]["evaluations"] = 5
    return graph


@pytest.mark.skipif(not CHECKOUT, reason="COMFYUI_PATH names no checkout of ComfyUI")
def test_the_workflows_run_in_comfyuis_own_executor(monkeypatch, tmp_path):
    comfy = Checkout(monkeypatch, tmp_path)
    import folder_paths

    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "output"))
    model = comfy.model(flow((4, 8, 8)))
    calls = model.model.diffusion_model.calls
    shown, failed = execute(comfy, model, [small("flux-calibrate"), small("flux-fit")])
    assert failed == []
    assert Profile.load(comfy.folder / "flux.profile.json").samples == 3
    assert Plan.load(comfy.folder / "flux-13.plan.json").evaluations == 5
    assert Plan.load(comfy.folder / "flux-fitted-13.plan.json").rule == "fitted"
    calls.clear()
    shown, failed = execute(comfy, model, [small("flux-tacache")])
    assert failed == []
    assert len(calls) == 5
    assert [image["filename"] for image in shown["14"]["images"]] == ["tacache_00001_.png"]


@pytest.mark.skipif(not CHECKOUT, reason="COMFYUI_PATH names no checkout of ComfyUI")
def test_a_mistake_reaches_the_user_of_comfyui(monkeypatch, tmp_path):
    comfy = Checkout(monkeypatch, tmp_path)
    model = comfy.model(flow((4, 8, 8)))
    graph = small("flux-calibrate")
    graph["8"]["inputs"]["name"] = "../flux"
    _, failed = execute(comfy, model, [graph])
    assert "is no name for a file" in failed[0]
