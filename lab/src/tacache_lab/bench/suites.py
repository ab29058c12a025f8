"""The paper's studies as presets: which methods, at which budgets, made ready on what."""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from tacache.errors import TACacheError
from tacache.prompts import read_prompts
from tacache_lab.bench.flow_runs import FLOW_STEPS
from tacache_lab.bench.judging import FULL
from tacache_lab.bench.model_caches import InsideMethod
from tacache_lab.bench.named_methods import GENERAL, GENERAL_PROMPTS, METHODS, published, resolve
from tacache_lab.bench.records import Reference
from tacache_lab.methods import BASELINES

OWN = ("tasu", "tasu-10", "damped", "fitted")
FAST = "fitted-fast"
# rivals that cache inside the model rather than its velocities; they know these pipelines
INSIDE = tuple(name for name, method in METHODS.items() if isinstance(method, InsideMethod))
INSIDE_OF = ("FluxPipeline", "WanPipeline")
OUTSIDE = tuple(name for name in METHODS if name not in INSIDE)
BUDGETS = (25, 17, 13, 10, 7, 5)
OTHERS_BUDGETS = (17, 13, 10, 7)
# tau_k / tau_d of table 4 and its full version
THRESHOLDS = ("0/0", "0.05/0.6", "0.05/0.7", "0.05/0.8", "0.05/0.9", "0.06/0.6", "0.07/0.7",
              "0.08/0.8")  # fmt: skip
# words that stand for the published settings of the pipeline's family, for INSIDE where it can, for
# those of INSIDE that come with diffusers, and for the thresholds that the paper has for the family
PUBLISHED, ALL_INSIDE, OF_DIFFUSERS, PAPER = "published", "inside", "diffusers", "tasu:paper"


# Euler runs beside those of `fewer` and of full steps: nearness to the flow is told in their steps
FINER = ("euler:100", "euler:200", "euler:400")
SOLVERS = ("fewer", "ab2", "unipc", "dpm++2m", "heun", "a2s", "oss", "stork")
# one of each kind; of those inside the model the most used one, the best one in `main`, and those
# of 2026
CACHING = ("magcache", "teacache", "taylorseer-1", "taylorseer-1-sigma", "hicache", "easycache",
           "vde", "meancache", "budcache", "spectrum", "l2p", "ertacache", "fastflow",
           "diffusers-fbcache", "diffusers-taylorseer", "diffusers-seacache",
           "cache-dit-dmd", "cache-dit-foca", "cache-dit-masks")  # fmt: skip


class Suite(NamedTuple):
    """A preset, whose values give way to the command's own options."""

    about: str
    methods: tuple[str, ...]
    evaluations: tuple[int, ...] = BUDGETS
    calibration_count: int = 8
    fine: int | None = None
    trace: bool = False
    reference: Reference = "run"
    tries: int | None = None  # settings of each rival, at most; None: all there are
    prompt_count: int | None = None  # test prompts; None: all there are
    makes_page: bool = False  # and a file to send, when all is done


SUITES: dict[str, Suite] = {
    "quick": Suite(
        "a first answer for a model of your own, with a page and a file to send",
        ("fewer", "instant", "tasu", FAST, OF_DIFFUSERS),
        (13, 10),
        tries=4,
        prompt_count=8,
        makes_page=True,
    ),
    "main": Suite(
        "tables 1 and 2: every method at every budget, also against 500 steps",
        (
            *OWN,
            *(name for name in OUTSIDE if name not in (*OWN, FAST) and "-10" not in name),
            ALL_INSIDE,
            PUBLISHED,
        ),
        fine=500,
    ),
    "ablation": Suite(
        "table 3: SSC, MI and DI one by one",
        ("fewer", "reuse-10", "magnitude-10", "direction-10", "tasu-10"),
        (13, 10, 7),
        calibration_count=60,
    ),
    "thresholds": Suite(
        "table 4: the paper's thresholds as they are, and those it has for the family",
        (*(f"tasu:{pair}" for pair in THRESHOLDS), PAPER),
        (),
        calibration_count=60,
    ),
    "pareto": Suite(
        "the Pareto figures: quality over speedup",
        (*OWN, "fewer", "teacache", "magcache", "taylorseer-1", "dpm++2m", ALL_INSIDE),
        (35, 30, 25, 21, 17, 15, 13, 11, 10, 9, 8, 7, 6, 5),
    ),
    "calibration": Suite(
        "table 6: 6, 30 and 60 calibration prompts, and those of another source; 30 are as many as "
        "fitted can have within the evaluations a fit may take",
        tuple(f"tasu-10@{prompts}" for prompts in ("6", "30", "60", f"{GENERAL}:60"))
        + tuple(f"fitted@{prompts}" for prompts in ("6", "16", "30", f"{GENERAL}:30")),
        (13, 10, 7),
        calibration_count=60,
    ),
    "drift": Suite(
        "figure and table of appendix C: drift of states and velocities, cos theta",
        (*OWN, "reuse-10", "magcache", "teacache", "taylorseer-1", "easycache"),
        (13, 10, 7),
        trace=True,
    ),
    "flow": Suite(
        "solvers, caches and plans by how near they come to the flow, all tuned to end near it",
        ("instant", "tasu", "fitted", "fitted-flow", *SOLVERS, *CACHING, *FINER),
        (25, 20, 17, 13, 10, 7, 5),
        reference="flow",
        tries=4,
    ),
    "others": Suite(
        "models of third parties: every method at the velocity function, to the full run",
        ("instant", "tasu", "tasu-10", "fitted", *(name for name in BASELINES if name != FULL)),
        OTHERS_BUDGETS,
    ),
    "others-flow": Suite(
        "the same models: solvers, caches and plans by how near they come to the flow",
        (
            "instant",
            "tasu",
            "fitted",
            "fitted-flow",
            *SOLVERS,
            *(name for name in CACHING if name not in INSIDE),
            *FINER[:2],
        ),
        OTHERS_BUDGETS,
        reference="flow",
        tries=4,
    ),
    "indicators": Suite(
        "figure 2: MI and DI of every step, with their spread over prompts",
        (FULL,),
        (),
        trace=True,
    ),
}


PLAIN = Suite("methods and budgets as asked for", (), (7, 10, 13, 17, 25))


def choose(name: str | None, **values: Any) -> Suite:
    """Return the preset of a name, or an empty one, with the given values in place of its own."""
    if name is not None and name not in SUITES:
        raise TACacheError(f"unknown suite {name!r}: choose from {', '.join(SUITES)}")
    preset = PLAIN if name is None else SUITES[name]
    chosen = preset._replace(**{key: value for key, value in values.items() if value})
    if chosen.reference not in get_args(Reference):
        raise TACacheError(
            f"no reference {chosen.reference!r}: choose from {', '.join(get_args(Reference))}"
        )
    if chosen.reference == "flow" and chosen.fine is None:
        chosen = chosen._replace(fine=FLOW_STEPS)
    if not chosen.methods:
        raise TACacheError("there is nothing to compare: give --methods or --suite")
    return chosen


def within_steps(budgets: Sequence[int], steps: int) -> list[int]:
    """Return the budgets of a preset that a run of so many steps can have."""
    possible = [budget for budget in budgets if budget <= steps]
    if budgets and not possible:
        raise TACacheError(
            f"all budgets of the preset are above {steps} steps: give --evaluations of your own"
        )
    return possible


def check_names(methods: Sequence[str]) -> None:
    """Refuse a method that does not exist before a model is loaded."""
    for name in methods:
        if name not in (FULL, PUBLISHED, ALL_INSIDE, OF_DIFFUSERS, PAPER):
            resolve(name)


def without_doubles(
    methods: Sequence[str], calibration: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Split methods into those to run and those that would repeat another.

    A method on the general prompts repeats the plain one where those are the calibration prompts.

    That is so for every model that has no prompts of its own, unless others are given.
    """
    general = read_prompts(GENERAL_PROMPTS)
    same = list(calibration) == general[: len(calibration)]
    left = [name for name in methods if same and f"@{GENERAL}:" in name]
    return [name for name in methods if name not in left], left


def expanded(methods: Sequence[str], pipeline: str) -> list[str]:
    """Replace words such as `published` by the methods they stand for on a pipeline's class."""
    family = pipeline.lower()
    inside = INSIDE if pipeline in INSIDE_OF else ()
    known = {*OUTSIDE, *inside}
    own = [
        name
        for name in published()
        if name.partition(":")[0] in known and name.partition(":")[2].split("-")[0] in family
    ]
    paper = [name for name in own if name.startswith("tasu:")]
    of_diffusers = [name for name in inside if name.startswith(f"{OF_DIFFUSERS}-")]
    words: dict[str, Sequence[str]] = {
        PUBLISHED: own,
        ALL_INSIDE: inside,
        OF_DIFFUSERS: of_diffusers,
        PAPER: paper,
    }
    return [method for name in methods for method in words.get(name, [name])]
