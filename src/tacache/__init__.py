"""TACache: rectified-flow generators several times faster, without training."""

from importlib.metadata import version

from tacache import models
from tacache.calibration import calibrate
from tacache.diagnostics import diagnose
from tacache.errors import HostError, PlanError, ProfileError, TACacheError
from tacache.fitting import fit_plan
from tacache.grid import time_grid
from tacache.instant import instant_plan
from tacache.plan import Certificate, Plan, make_plan
from tacache.profile import Profile
from tacache.stepper import Stepper, sample
from tacache.storage.origin import Origin

__version__ = version("tacache")

__all__ = [
    "Certificate",
    "HostError",
    "Origin",
    "Plan",
    "PlanError",
    "Profile",
    "ProfileError",
    "Stepper",
    "TACacheError",
    "calibrate",
    "diagnose",
    "fit_plan",
    "instant_plan",
    "make_plan",
    "models",
    "sample",
    "time_grid",
]
