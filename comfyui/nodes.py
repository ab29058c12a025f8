"""The nodes: prompts, calibrate, plan, fit, sampler."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import comfy.samplers

from tacache import HostError, Plan, PlanError, Profile, ProfileError, TACacheError, make_plan
from tacache.errors import StorageError
from tacache.fitting.quality_goal import Measure, QualityGoal, check_one_budget
from tacache.instant import default_evaluations
from tacache.prompts import BUILT_IN, read_prompts
from tacache.storage.store import PlanStore

from . import node_files as files
from .node_runs import RunInputs, fitted, profiles
from .sampling import follow_plan

logger = logging.getLogger("tacache.comfyui")

Inputs = dict[str, dict[str, tuple[Any, ...]]]

CATEGORY = "sampling/tacache"
OWN = "own"
# how a plan is asked for -> what make_plan gets of the node's numbers
ASKED: dict[str, Callable[..., dict[str, float]]] = {
    "evaluations": lambda evaluations, **_: {"evaluations": evaluations},
    "speedup": lambda speedup, **_: {"speedup": speedup},
    "thresholds": lambda tau_k, tau_d, **_: {"tau_k": tau_k, "tau_d": tau_d},
}
EVALUATIONS = (
    "INT",
    {"default": 13, "min": 1, "max": 1000, "tooltip": "How often the model is evaluated."},
)
QUALITY: dict[str, tuple[Any, ...]] = {
    "like_steps": (
        "INT",
        {
            "default": 0,
            "min": 0,
            "max": 10_000,
            "tooltip": "As near to the flow as so many Euler steps, with the fewest evaluations; "
            "set evaluations to 0.",
        },
    ),
    "min_psnr": (
        "FLOAT",
        {
            "default": 0.0,
            "min": 0.0,
            "max": 200.0,
            "step": 0.5,
            "tooltip": "This PSNR to the full run in dB, such as 35, with the fewest evaluations; "
            "set evaluations to 0.",
        },
    ),
    "psnr_of": (
        list(get_args(Measure)),
        {"tooltip": "Of which pictures min_psnr is: their mean, or their 5th percentile."},
    ),
}
RUNS: dict[str, tuple[Any, ...]] = {
    "model": ("MODEL",),
    "positive": ("CONDITIONING", {"tooltip": "One prompt, or a list as TACache Prompts makes it."}),
    "negative": ("CONDITIONING", {"tooltip": "With cfg 1 it is not used: connect the positive."}),
    "cfg": ("FLOAT", {"default": 1.0, "min": 0.0, "max": 100.0, "step": 0.1}),
    "latent_image": ("LATENT",),
    "sigmas": ("SIGMAS",),
    "first_seed": ("INT", {"default": 0, "min": 0, "max": 2**53}),
    "seeds": ("INT", {"default": 1, "min": 1, "max": 64, "tooltip": "Runs of each prompt."}),
    "name": ("STRING", {"default": "flux", "tooltip": "The file's, in models/tacache."}),
}


class TACachePrompts:
    """Prompts as a list of conditionings: a set that ships with TACache, or one's own lines."""

    CATEGORY, FUNCTION = CATEGORY, "encode"
    DESCRIPTION = "Prompts for TACache Calibrate and TACache Fit, one conditioning each."
    RETURN_TYPES, OUTPUT_IS_LIST = ("CONDITIONING",), (True,)

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802
        """Return what ComfyUI asks for."""
        return {
            "required": {
                "clip": ("CLIP",),
                "prompts": ([*BUILT_IN, OWN], {"tooltip": "'own' takes the lines of the text."}),
                "count": ("INT", {"default": 8, "min": 1, "max": 1000}),
                "text": ("STRING", {"multiline": True, "tooltip": "One prompt a line."}),
            }
        }

    def encode(self, clip: Any, prompts: str, count: int, text: str) -> tuple[list[Any]]:
        """Encode the first `count` prompts as ComfyUI's own text node does it."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        texts = (lines if prompts == OWN else read_prompts(prompts))[:count]
        if not texts:
            raise HostError("there is no prompt: write one a line into the text")
        return ([clip.encode_from_tokens_scheduled(clip.tokenize(text)) for text in texts],)


class TACacheCalibrate:
    """Runs full steps and measures how the velocity changes from step to step."""

    CATEGORY, FUNCTION, OUTPUT_NODE, INPUT_IS_LIST = CATEGORY, "calibrate", True, True
    DESCRIPTION = "Full runs of every prompt and seed, measured into a profile: once per model."
    RETURN_TYPES, RETURN_NAMES = ("TACACHE_PROFILE",), ("profile",)

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802
        """Return what ComfyUI asks for."""
        return {"required": RUNS, "optional": {"add_to": ("TACACHE_PROFILE",)}}

    def calibrate(self, name: list[str], add_to: list[Profile] | None = None, **inputs: Any) -> Any:
        """Save and return the profile; of a cancelled calibration the finished runs are kept."""
        job, path = _job(inputs), files.target(name[0], files.PROFILE)
        measured: list[Profile] = []
        try:
            for run_profile in profiles(job):
                measured.append(run_profile)
            profile = Profile.merge([*(add_to or []), *measured])
        except BaseException:
            if measured:
                kept = Profile.merge(measured).save(_beside(path))
                logger.warning("the calibration stopped: its finished runs are in %s", kept)
            raise
        profile.save(path)
        said = f"{profile.samples} samples, {profile.steps} steps: {path.name}"
        return {"ui": {"text": [said]}, "result": (profile,)}


class TACachePlan:
    """Decides from a profile which steps to evaluate."""

    CATEGORY, FUNCTION, OUTPUT_NODE = CATEGORY, "plan", True
    DESCRIPTION = "A plan from a profile, by evaluations, speedup or the paper's thresholds."
    RETURN_TYPES, RETURN_NAMES = ("TACACHE_PLAN",), ("plan",)

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802
        """Return what ComfyUI asks for."""
        return {
            "required": {
                "profile_file": (files.names(files.PROFILE),),
                "by": (list(ASKED),),
                "evaluations": EVALUATIONS,
                "speedup": ("FLOAT", {"default": 4.0, "min": 1.0, "max": 100.0, "step": 0.1}),
                "tau_k": ("FLOAT", {"default": 0.04, "min": 0.0, "max": 10.0, "step": 0.001}),
                "tau_d": ("FLOAT", {"default": 0.4, "min": 0.0, "max": 10.0, "step": 0.01}),
                "max_skip": ("INT", {"default": 12, "min": 1, "max": 1000}),
                "name": ("STRING", {"default": "", "tooltip": "Empty: the plan is not saved."}),
            },
            "optional": {"profile": ("TACACHE_PROFILE",), "sigmas": ("SIGMAS",)},
        }

    @classmethod
    def IS_CHANGED(cls, profile_file: str | None = files.NONE, **_: Any) -> float:  # noqa: N802
        """Run again when the file changes."""
        return files.stamp(profile_file)

    @classmethod
    def VALIDATE_INPUTS(cls, profile_file: str | None = files.NONE) -> bool | str:  # noqa: N802
        """Check that the file is there, in place of ComfyUI's own check against its list."""
        return files.missing(profile_file) or True

    def plan(
        self,
        profile_file: str,
        by: str,
        max_skip: int,
        name: str,
        profile: Profile | None = None,
        sigmas: Any = None,
        **numbers: float,
    ) -> Any:
        """Make a plan, on the profile's grid or on these sigmas; save it where a name is given."""
        source = _one_of({"profile": profile, "profile_file": _file(profile_file)}, ProfileError)
        measured = source if isinstance(source, Profile) else files.load_profile(source)
        if sigmas is not None:
            measured = measured.resample(sigmas.tolist())
        wanted: Any = ASKED[by](**numbers)
        plan = make_plan(measured, max_skip=max_skip, **wanted)
        if name:
            plan.save(files.target(name, files.PLAN))
        return {"ui": {"text": [_summary(plan)]}, "result": (plan,)}


class TACacheFit:
    """Fits a plan's anchors and weights to the model itself."""

    CATEGORY, FUNCTION, OUTPUT_NODE, INPUT_IS_LIST = CATEGORY, "fit", True, True
    DESCRIPTION = "A plan fitted on full runs of every prompt and seed; takes long, once per model."
    RETURN_TYPES, RETURN_NAMES = ("TACACHE_PLAN",), ("plan",)

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802
        """Return what ComfyUI asks for."""
        most = {
            "default": 3000,
            "min": 1,
            "max": 10**6,
            "tooltip": "Evaluations that may be spent on a budget; a quality tries several.",
        }
        few = ("INT", {**EVALUATIONS[1], "min": 0, "tooltip": "0: the usual number, or a quality."})
        vae = ("VAE", {"tooltip": "Makes the pictures that min_psnr compares."})
        return {
            "required": {**RUNS, "evaluations": few, "max_evaluations": ("INT", most)},
            "optional": {**QUALITY, "vae": vae},
        }

    def fit(
        self,
        name: list[str],
        evaluations: list[int],
        max_evaluations: list[int],
        like_steps: Sequence[int] = (0,),
        min_psnr: Sequence[float] = (0.0,),
        psnr_of: Sequence[Measure] = ("mean",),
        vae: Sequence[Any] = (None,),
        **inputs: Any,
    ) -> Any:
        """Save and return the plan, which also goes into the user's plan store."""
        path = files.target(name[0], files.PLAN)
        goal = _quality(evaluations[0], like_steps[0], min_psnr[0], psnr_of[0])
        if goal is not None and goal.target == "run" and vae[0] is None:
            raise PlanError("min_psnr is the PSNR of pictures: connect a vae, or use like_steps")
        job = _job(inputs)
        asked = goal or evaluations[0] or default_evaluations(len(job.sigmas) - 1)
        plan = fitted(job, asked, max_evaluations[0], vae[0])
        plan.save(path)
        try:
            said = f"{_summary(plan)}; stored as {PlanStore().put(plan).name}"
        except StorageError as error:
            said = f"{_summary(plan)}; not stored: {error}"
        return {"ui": {"text": [said]}, "result": (plan,)}


class TACacheSampler:
    """A sampler that follows a plan."""

    CATEGORY, FUNCTION = CATEGORY, "sampler"
    DESCRIPTION = "For SamplerCustom and SamplerCustomAdvanced: Euler, evaluated at anchors only."
    RETURN_TYPES = ("SAMPLER",)

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802
        """Return what ComfyUI asks for."""
        return {
            "required": {
                "file": (
                    [files.STORED, *files.names(files.PLAN), *files.names(files.PROFILE)[1:]],
                    {
                        "tooltip": "A plan of your plan store that was fitted for just such a run, "
                        "else an instant one; or a plan file, or a profile. What is connected "
                        "comes before 'stored or instant' and 'none'."
                    },
                ),
                "evaluations": (
                    "INT",
                    {
                        **EVALUATIONS[1],
                        "default": 0,
                        "min": 0,
                        "tooltip": "0: the usual number for so many steps. A plan that you choose "
                        "has its own.",
                    },
                ),
            },
            "optional": {
                "plan": ("TACACHE_PLAN",),
                "profile": ("TACACHE_PROFILE",),
                **QUALITY,
            },
        }

    @classmethod
    def IS_CHANGED(cls, file: str | None = files.NONE, **_: Any) -> float:  # noqa: N802
        """Run again when the file changes."""
        return files.stamp(file)

    @classmethod
    def VALIDATE_INPUTS(cls, file: str | None = files.NONE) -> bool | str:  # noqa: N802
        """Check that the file is there, in place of ComfyUI's own check against its list."""
        return files.missing(file) or True

    def sampler(
        self,
        file: str,
        evaluations: int,
        plan: Plan | None = None,
        profile: Profile | None = None,
        like_steps: int = 0,
        min_psnr: float = 0.0,
        psnr_of: Measure = "mean",
    ) -> tuple[Any]:
        """Return a SAMPLER; what is stored or planned is chosen when the sigmas are known."""
        source: Any = None
        goal = _quality(evaluations, like_steps, min_psnr, psnr_of)
        if file != files.STORED or (plan, profile) != (None, None):
            chosen = None if file in (files.STORED, files.NONE) else file
            source = _one_of({"plan": plan, "profile": profile, "file": chosen}, PlanError)
        if goal is not None and source is not None:
            raise PlanError(
                f"a quality chooses among stored plans: take {files.STORED!r} and connect no plan "
                "or profile, or set like_steps and min_psnr to 0"
            )
        if isinstance(source, str):
            load = files.load_plan if source.endswith(files.PLAN) else files.load_profile
            source = load(source)
        options = {"source": source, "evaluations": evaluations, "goal": goal}
        return (comfy.samplers.KSAMPLER(follow_plan, options),)


def _quality(
    evaluations: int, like_steps: int, min_psnr: float, psnr_of: Measure
) -> QualityGoal | None:
    """Return the quality that is asked for, where 0 asks for nothing; one of the three is given."""
    asked = {"evaluations": evaluations, "like_steps": like_steps, "min_psnr": min_psnr}
    options = {name: value or None for name, value in asked.items()}
    check_one_budget(options)
    if options["min_psnr"] is None:  # the list of psnr_of always has a value
        psnr_of = "mean"
    return QualityGoal.of(like_steps or None, options["min_psnr"], psnr_of)


def _job(inputs: dict[str, list[Any]]) -> RunInputs:
    """Return the runs, from inputs that all come as lists; prompts may have several."""
    first_of = {name: values[0] for name, values in inputs.items()}
    if len(first_of["sigmas"]) < 2:
        raise HostError(
            f"the sigmas have {len(first_of['sigmas'])} levels, so there is no step to run: give "
            "the whole schedule, with denoise above 0"
        )
    first_seed = first_of["first_seed"]
    return RunInputs(
        model=first_of["model"],
        positive=inputs["positive"],
        negative=inputs["negative"],
        cfg=first_of["cfg"],
        latent=first_of["latent_image"],
        sigmas=first_of["sigmas"],
        seeds=range(first_seed, first_seed + first_of["seeds"]),
    )


def _one_of(sources: dict[str, Any], error: type[TACacheError]) -> Any:
    connected = {name: source for name, source in sources.items() if source is not None}
    if len(connected) != 1:
        problem = f"{' and '.join(connected)} are given" if connected else "none is given"
        raise error(f"give exactly one of {', '.join(sources)}: {problem}")
    return next(iter(connected.values()))


def _beside(path: Path) -> Path:
    """Return where the finished runs of a cancelled calibration go."""
    return path.with_name(path.name.removesuffix(files.PROFILE) + ".cancelled" + files.PROFILE)


def _file(name: str) -> str | None:
    return None if name == files.NONE else name


def _summary(plan: Plan) -> str:
    steps = ", ".join(map(str, plan.anchors))
    return f"{plan.evaluations} of {plan.steps} steps evaluated: {steps}"


NODE_CLASS_MAPPINGS = {
    cls.__name__: cls
    for cls in (TACachePrompts, TACacheCalibrate, TACachePlan, TACacheFit, TACacheSampler)
}
NODE_DISPLAY_NAME_MAPPINGS = {
    name: name.replace("TACache", "TACache ") for name in NODE_CLASS_MAPPINGS
}
