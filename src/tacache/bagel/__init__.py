"""BAGEL by a user's own checkout: follow plans, measure profiles and fit plans on it."""

from tacache.bagel.accelerating import accelerate
from tacache.bagel.host import applied, apply, remove
from tacache.bagel.inferencer import calibrate, fit_plan
from tacache.bagel.loading import load_inferencer

__all__ = [
    "accelerate",
    "applied",
    "apply",
    "calibrate",
    "fit_plan",
    "load_inferencer",
    "remove",
]
