"""Entry points by which vLLM-Omni and SGLang load saved pipelines with a plan.

Both engines call the functions named in `pyproject.toml` once in every worker process.
"""

from typing import Any

from tacache.diffusers.schedulers import PlanSchedulerMixin, plan_scheduler

PREFIX = PlanSchedulerMixin.PREFIX
# The schedulers of SGLang that can carry a plan; it has classes of its own by diffusers' names.
IN_SGLANG = (
    "FlowMatchEulerDiscreteScheduler",
    "UniPCMultistepScheduler",
    "DPMSolverMultistepScheduler",
)


def load_in_vllm_omni() -> None:
    """Do nothing more: this module's import lets diffusers find the classes with a plan."""


def load_in_sglang() -> None:
    """Tell SGLang's registry the names that `scheduler_config.json` has for a class with a plan.

    SGLang resolves them when it loads a pipeline; nothing is imported before.
    """
    registry = _sglang_registry()
    for name in IN_SGLANG:
        if PREFIX + name not in registry.registered_models:
            registry.register_model(PREFIX + name, f"{__name__}:{PREFIX}{name}")


def __getattr__(name: str) -> Any:
    """Return the class with a plan over SGLang's own scheduler, by its registered name."""
    plain = name.removeprefix(PREFIX)
    if name == plain or plain not in IN_SGLANG:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    parent, _ = _sglang_registry().resolve_model_cls(plain)
    return plan_scheduler(parent)


def _sglang_registry() -> Any:
    from sglang.multimodal_gen.runtime.models.registry import (  # type: ignore[import-not-found]
        ModelRegistry,
    )

    return ModelRegistry
