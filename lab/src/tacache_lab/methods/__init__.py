"""Every rival as a rule or a solver on one seam: same noise, same grid, counted at the model.

recording = record(velocity, noise, times, grid=partial(time_grid, shift=3.0))
settings = BASELINES["magcache"].fit(recording, evaluations=13)
outcome = BASELINES["magcache"].run(Problem(velocity, test_noise, times), settings)
"""

from typing import Any

from tacache_lab.methods.budcache import BudCache
from tacache_lab.methods.easycache import EasyCache
from tacache_lab.methods.ertacache import ERTACache
from tacache_lab.methods.fastflow import FastFlow
from tacache_lab.methods.l2p import L2P
from tacache_lab.methods.magcache import MagCache
from tacache_lab.methods.meancache import MeanCache
from tacache_lab.methods.samplers import A2S, OSS
from tacache_lab.methods.seam import Baseline, Outcome, RecordedProblem, SamplingProblem, record
from tacache_lab.methods.simple import FewerSteps, Full, ReuseOnAnchors
from tacache_lab.methods.solvers import SOLVERS
from tacache_lab.methods.spectrum import Spectrum
from tacache_lab.methods.stork import Stork
from tacache_lab.methods.taylorseer import HiCache, TaylorSeer
from tacache_lab.methods.teacache import TeaCacheState, TeaCacheTime
from tacache_lab.methods.vde import VDE

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
    ERTACache(),
    FastFlow(),
    A2S(),
    OSS(),
    Stork(),
    *SOLVERS,
)
BASELINES: dict[str, Baseline[Any]] = {baseline.name: baseline for baseline in _ALL}

__all__ = ["BASELINES", "Baseline", "Outcome", "RecordedProblem", "SamplingProblem", "record"]
