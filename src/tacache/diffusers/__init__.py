"""Follow, measure and fit plans in flow pipelines of diffusers; only the scheduler is swapped."""

try:
    import diffusers as _diffusers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tacache.diffusers needs diffusers: pip install 'tacache[diffusers]'", name=error.name
    ) from error


from tacache.diffusers.accelerated import accelerate
from tacache.diffusers.applying import applied, apply, remove
from tacache.diffusers.pipeline import calibrate, fit_plan
from tacache.diffusers.schedulers import (
    PlanDPMSolverMultistepScheduler,
    PlanFlowMatchEulerDiscreteScheduler,
    PlanUniPCMultistepScheduler,
    plan_scheduler,
)
from tacache.diffusers.trajectory import drive

__all__ = [
    "PlanDPMSolverMultistepScheduler",
    "PlanFlowMatchEulerDiscreteScheduler",
    "PlanUniPCMultistepScheduler",
    "accelerate",
    "applied",
    "apply",
    "calibrate",
    "drive",
    "fit_plan",
    "plan_scheduler",
    "remove",
]
