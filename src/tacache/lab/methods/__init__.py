"""Every rival as a rule or a solver on one seam: same noise, same grid, counted at the model.

recording = record(velocity, noise, times, grid=partial(time_grid, shift=3.0))
settings = BASELINES["magcache"].fit(recording, evaluations=13)
outcome = BASELINES["magcache"].run(Problem(velocity, test_noise, times), settings)
"""

from typing import Any

from tacache.lab.methods.budcache import BudCache
from tacache.lab.methods.easycache import EasyCache
from tacache.lab.methods.l2p import L2P
from tacache.lab.methods.magcache import MagCache
from tacache.lab.methods.meancache import MeanCache
from tacache.lab.methods.samplers import A2S, OSS
from tacache.lab.methods.seam import Baseline, Outcome, Problem, Recording, record
from tacache.lab.methods.simple import FewerSteps, Full, ReuseOnAnchors
from tacache.lab.methods.solvers import SOLVERS
from tacache.lab.methods.spectrum import Spectrum
from tacache.lab.methods.taylorseer import HiCache, TaylorSeer
from tacache.lab.methods.teacache import TeaCacheState, TeaCacheTime
from tacache.lab.methods.vde import VDE

_ALL: tuple[Baseline[Any], ...] = (
    Full(),
    FewerSteps(),
    ReuseOnAnchors(),
    MagCache(),
    TeaCacheTime(),
    TeaCacheState(),
    TaylorSeer(order=1),
    TaylorSeer(order=2),
    TaylorSeer(order=1, clock="sigma"),
    TaylorSeer(order=2, clock="sigma"),
    HiCache(),
    EasyCache(),
    VDE(),
    MeanCache(),
    BudCache(),
    Spectrum(),
    L2P(),
    A2S(),
    OSS(),
    *SOLVERS,
)
BASELINES: dict[str, Baseline[Any]] = {baseline.name: baseline for baseline in _ALL}

__all__ = ["BASELINES", "Baseline", "Outcome", "Problem", "Recording", "record"]
