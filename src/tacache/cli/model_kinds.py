"""The kinds of model that commands know: diffusers' pipelines, and BAGEL."""

from pathlib import Path
from typing import Any, Protocol

from tacache.errors import TACacheError
from tacache.grid import MAX_STEPS
from tacache.hosts import Host
from tacache.models import default_call, own_prompts
from tacache.plan import Plan


class ModelKind(Protocol):
    """What commands ask of a kind of model, before one is loaded and to load it."""

    steps_argument: str  # of its call, the one that says how many steps a run has
    batches: bool  # whether a call makes several samples

    def load(self, model: str, options: dict[str, Any], bars: bool) -> Host:
        """Return the model's host, loaded by the options of --load."""

    def accelerate(self, pipe: Any, options: dict[str, Any]) -> None:
        """Make the calls of what was loaded faster."""

    def prompts_of(self, model: str, source: str) -> str | Path:
        """Return where to read prompts from: the model's own set of this name, if it has one."""

    def call_arguments(self, model: str, plan: Plan | None, **options: Any) -> dict[str, Any]:
        """Return the arguments of a call: the model's own, then a plan's, then the options."""

    def steps_of(self, call: dict[str, Any]) -> int:
        """Return the number of steps of a full run."""


class PipelineKind:
    """Pipelines of diffusers: hub ids, folders and models that are installed by name."""

    steps_argument = "num_inference_steps"
    batches = True

    def load(self, model: str, options: dict[str, Any], bars: bool) -> Host:
        """Return the host of the pipeline."""
        from tacache.diffusers.pipeline import PipelineHost
        from tacache.diffusers.pipeline_loading import Loading, load_pipeline

        pipe = load_pipeline(model, Loading(**options))
        pipe.set_progress_bar_config(disable=not bars)
        return PipelineHost(pipe)

    def accelerate(self, pipe: Any, options: dict[str, Any]) -> None:
        """Make the pipeline's calls faster."""
        from tacache.diffusers import accelerate

        accelerate(pipe, **options)

    def prompts_of(self, model: str, source: str) -> str | Path:
        """Return a model's own set of prompts of this name, where it has one."""
        return own_prompts(model, source)

    def call_arguments(self, model: str, plan: Plan | None, **options: Any) -> dict[str, Any]:
        """Return the pipeline's arguments: the model's own, then a plan's, then the options."""
        of_plan: dict[str, Any] = {}
        if plan is not None:
            of_plan = {self.steps_argument: plan.full_steps, **(plan.origin.call or {})}
        own = default_call(model)
        guidance = "true_cfg_scale" if "true_cfg_scale" in own else "guidance_scale"
        names = {"steps": self.steps_argument, "frames": "num_frames", "guidance": guidance}
        named = {names.get(name, name): v for name, v in options.items() if v is not None}
        return {**own, **of_plan, **named}

    def steps_of(self, call: dict[str, Any]) -> int:
        """Return the number of steps of a full run."""
        return whole(call, self.steps_argument)


class BagelKind:
    """BAGEL: a checkout and weights of the user's, which --load names."""

    steps_argument = "num_timesteps"
    batches = False
    side = 1024  # pixels, unless --height or --width says otherwise

    def load(self, model: str, options: dict[str, Any], bars: bool) -> Host:
        """Return the host of the inferencer."""
        for name in ("bagel-path", "weights"):
            if name.replace("-", "_") not in options:
                raise TACacheError(
                    f"bagel needs --load {name}=DIR: give --load bagel-path=DIR (a checkout of "
                    "ByteDance-Seed/Bagel) and --load weights=DIR (BAGEL-7B-MoT)"
                )
        if "offload" in options:
            raise TACacheError("bagel has no offload: --load device=auto uses all GPUs and the CPU")
        if options.get("compile"):
            raise TACacheError("bagel is not compiled: leave compile out")
        if options.keys() & {"revision", "variant"}:
            raise TACacheError("bagel is loaded from folders: leave revision and variant out")
        from tacache.bagel.inferencer import BagelHost, only_process
        from tacache.bagel.loading import load_inferencer

        only_process()  # refuse before the weights are read
        folders = (Path(options["bagel_path"]), Path(options["weights"]))
        dtype, device = options.get("dtype"), options.get("device")
        return BagelHost(load_inferencer(*folders, dtype=dtype, device=device))

    def accelerate(self, pipe: Any, options: dict[str, Any]) -> None:
        """Make the inferencer's calls faster."""
        from tacache.bagel import accelerate

        accelerate(pipe, **options)

    def prompts_of(self, model: str, source: str) -> str:
        """Return the source itself: BAGEL has no prompts of its own."""
        return source

    def call_arguments(self, model: str, plan: Plan | None, **options: Any) -> dict[str, Any]:
        """Return the inferencer's arguments: a plan's own, then the options."""
        if options.pop("frames", None) is not None:
            raise TACacheError("bagel makes pictures: leave --frames")
        height, width = options.pop("height", None), options.pop("width", None)
        call = self._of_plan(plan)
        names = {"steps": self.steps_argument, "guidance": "cfg_text_scale"}
        named = {names[name]: value for name, value in options.items() if value is not None}
        if height is not None or width is not None:
            shape = call.get("image_shapes", (self.side, self.side))
            if not isinstance(shape, list | tuple) or len(shape) != 2:
                raise TACacheError(
                    f"the plan's image_shapes are a height and a width, not {shape!r}"
                )
            named["image_shapes"] = (height or shape[0], width or shape[1])
        return {**call, **named}

    def steps_of(self, call: dict[str, Any]) -> int:
        """Return the number of steps of a full run: BAGEL counts noise levels, one more."""
        return whole(call, self.steps_argument) - 1

    def _of_plan(self, plan: Plan | None) -> dict[str, Any]:
        """Return the arguments that a plan was made with, or else its own number of steps."""
        if plan is None:
            return {}
        known = (plan.origin.call or {}) if plan.origin.kind == "bagel" else {}
        call = {self.steps_argument: plan.full_steps + 1, **known}
        return {name: value for name, value in call.items() if value is not None}


def whole(call: dict[str, Any], name: str) -> int:
    """Return an argument that is a number of steps: a whole one that a grid can have."""
    value = call[name]
    if type(value) is not int or not 1 <= value <= MAX_STEPS:
        raise TACacheError(f"{name} is a whole number from 1 to {MAX_STEPS}, not {value!r}")
    return value


# The kinds by the names of their models; every other name is a pipeline's. Whoever has a kind of
# model of its own adds it here before a command looks its model up.
KINDS: dict[str, ModelKind] = {"bagel": BagelKind()}
