"""Which schedulers of diffusers sample a flow deterministically, and their grids as ours."""

from typing import Any

from tacache.errors import HostError
from tacache.grid import as_times

STOCHASTIC = {"SASolverScheduler", "FlowMatchLCMScheduler", "LCMScheduler", "SCMScheduler"}


def check_flow_scheduler(scheduler: Any) -> None:
    """Raise with the reason if this scheduler cannot carry a plan."""
    reason = _refusal(scheduler)
    if reason is not None:
        raise HostError(f"{type(scheduler).__name__} cannot carry a plan: {reason}")


def run_times(scheduler: Any) -> tuple[float, ...]:
    """The noise levels of the run that `set_timesteps` prepared, noise (1) first.

    Reads the whole list at once, so that no step waits for the device.
    """
    sigmas = scheduler.sigmas.tolist()
    if scheduler.config.get("invert_sigmas"):  # Mochi counts from data to noise
        sigmas = [1 - sigma for sigma in sigmas]
    if len(sigmas) > 1 and sigmas[-1] == sigmas[-2] > 0:
        sigmas[-1] = 0.0  # DEIS and others stay at their last level; no later step needs its length
    return as_times(sigmas)


def _refusal(scheduler: Any) -> str | None:
    names, config = {base.__name__ for base in type(scheduler).__mro__}, scheduler.config
    if names & STOCHASTIC or config.get("stochastic_sampling"):
        return "it draws new noise at each step, so a step cannot be rebuilt from earlier ones"
    if str(config.get("algorithm_type", "")).startswith("sde"):
        return f"its algorithm {config['algorithm_type']!r} draws new noise at each step"
    if getattr(scheduler, "order", 1) != 1:
        return f"it evaluates the model {scheduler.order} times a step"
    euler = "FlowMatchEulerDiscreteScheduler" in names
    multistep = config.get("use_flow_sigmas") and config.get("prediction_type") == "flow_prediction"
    if not (euler or multistep):
        return (
            "it does not sample a flow (FlowMatchEuler, or UniPC, DPM++ and others with "
            "use_flow_sigmas=True and prediction_type='flow_prediction')"
        )
    return None
