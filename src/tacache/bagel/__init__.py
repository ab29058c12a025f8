"""BAGEL, by a user's own checkout: plans followed, profiles measured and plans fitted on it."""

from tacache.bagel.calibration import calibrate
from tacache.bagel.fitting import fit_plan, fit_plans
from tacache.bagel.host import applied
from tacache.bagel.loading import load_inferencer

__all__ = ["applied", "calibrate", "fit_plan", "fit_plans", "load_inferencer"]
