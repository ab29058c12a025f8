"""Every rival as a rule or a solver on one seam: same noise, same grid, counted at the model.

recording = record(velocity, noise, times, grid=partial(time_grid, shift=3.0))
settings = BASELINES["magcache"].fit(recording, evaluations=13)
outcome = BASELINES["magcache"].run(Problem(velocity, test_noise, times), settings)
"""

from typing import Any

from tacache.baselines.budcache import BudCache
from tacache.baselines.easycache import EasyCache
from tacache.baselines.magcache import MagCache
from tacache.baselines.meancache import MeanCache
from tacache.baselines.samplers import A2S, OSS
from tacache.baselines.seam import Baseline, Outcome, Problem, Recording, record
from tacache.baselines.simple import FewerSteps, Full, ReuseOnAnchors
from tacache.baselines.solvers import SOLVERS
from tacache.baselines.taylorseer import HiCache, TaylorSeer
from tacache.baselines.teacache import TeaCacheState, TeaCacheTime
from tacache.baselines.vde import VDE

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
    A2S(),
    OSS(),
    *SOLVERS,
)
BASELINES: dict[str, Baseline[Any]] = {baseline.name: baseline for baseline in _ALL}

__all__ = ["BASELINES", "Baseline", "Outcome", "Problem", "Recording", "record"]
