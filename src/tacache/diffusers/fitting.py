"""The names under which the command line finds fits on a pipeline."""

from tacache.diffusers.pipeline import fit_plan, fit_plans
from tacache.host import kept_by as share_of

__all__ = ["fit_plan", "fit_plans", "share_of"]
