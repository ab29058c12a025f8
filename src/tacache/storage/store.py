"""The plan store: a folder of plan files per user, found by what they were fitted for.

A plan is used unasked only where everything agrees: the kind of host, pipeline, network, weights
with adapters, size, dtype, scheduler with the options of its steps, settings of the call, and grid.
Only fitted plans are: an instant plan does as well as one that follows the paper's rule.
"""

import difflib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from platformdirs import user_data_path
from pydantic import JsonValue

from tacache.errors import PlanError, StorageError, printable
from tacache.grid import break_steps, same_grid
from tacache.plan import Plan
from tacache.profile import Origin
from tacache.storage.atomic import unwritable
from tacache.storage.hub import SUFFIX

logger = logging.getLogger("tacache.store")

HOME = "TACACHE_HOME"  # the environment variable that moves the store
PATIENCE = 30.0  # seconds to wait for another process that writes
LOCK = ".lock"
# of a scheduler's configuration, what its steps are made by; the rest shows in the grid
SOLVER_OPTIONS = (
    "solver_order",
    "solver_type",
    "algorithm_type",
    "predict_x0",
    "disable_corrector",
    "lower_order_final",
    "euler_at_final",
    "final_sigmas_type",
)
STEP_OPTIONS = (*SOLVER_OPTIONS, "prediction_type", "stochastic_sampling", "thresholding")
# arguments of a call that change no velocity, or that the grid shows
NO_SETTINGS = (
    "num_images_per_prompt",
    "num_inference_steps",
    "num_timesteps",
    "num_videos_per_prompt",
    "return_dict",
    "timestep_shift",
)
TEXTS = ("cfg_renorm_type",)  # that shape velocities; others are prompts and names of formats


class Stored(NamedTuple):
    """A plan of the store: its name, its file and the plan itself."""

    name: str
    path: Path
    plan: Plan


class PlanStore:
    """Plans in a folder, which several processes may read and write at once.

    Without a folder it is the user's own: `$TACACHE_HOME/plans`, else the place that the system has
    for a program's data. `shipped` are folders that are only read, after the store's own; without
    them those of the models that come with the package.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        shipped: Sequence[Path] | None = None,
    ) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self.shipped = shipped_folders() if shipped is None else tuple(shipped)
        self._known: dict[Path, tuple[object, Plan | None]] = {}

    def put(self, plan: Plan) -> Stored:
        """Write a plan into the store; it takes the place of one for the same purpose.

        The same purpose is the same setting, number of evaluations, rule and target. A disk that is
        full or cannot be written to is a StorageError, and what was there stays.
        """
        with self._locked():
            there = self.like(plan)
            path = self._free_path(plan) if there is None else there.path
            plan.save(path)
        return Stored(_name_of(path), path, plan)

    def plans(self) -> list[Stored]:
        """Every plan of the store by its name; a damaged file is named in a warning and skipped."""
        return list(self._read(self.folder))

    def shipped_plans(self) -> list[Stored]:
        """Every plan that comes with the package."""
        return [one for folder in self.shipped for one in self._read(folder)]

    def like(self, plan: Plan) -> Stored | None:
        """The plan of the store that is for the same purpose, if there is one."""
        return next((one for one in self.plans() if _replaces(plan, one.plan)), None)

    def find(
        self,
        origin: Origin,
        times: Sequence[float],
        evaluations: int,
        breaks: Sequence[float] = (),
    ) -> Stored | None:
        """The fitted plan with so many evaluations that agrees with this run, or None.

        One that was fitted to the run comes before one that was fitted to the flow, and one of the
        user's before one that ships. A latent shape or dtype that `origin` does not know is not
        compared; without a fingerprint of the weights no plan is found.
        """
        for folder in (self.folder, *self.shipped):
            found = [
                one
                for one in self._read(folder)
                if one.plan.rule == "fitted"
                and one.plan.evaluations == evaluations
                and agrees(one.plan, origin, times, breaks)
            ]
            if found:
                return min(found, key=lambda one: target_of(one.plan) == "flow")
        return None

    def get(self, name: str) -> Stored:
        """The plan of this name, or an error that names a similar one."""
        stored = {one.name: one for one in (*self.shipped_plans(), *self.plans())}
        wanted = name.removesuffix(SUFFIX)
        if wanted not in stored:
            close = difflib.get_close_matches(wanted, stored, n=1)
            hint = f"did you mean {close[0]}?" if close else "tacache plans lists those there are"
            raise PlanError(f"there is no plan {name!r} in {self.folder}: {hint}")
        return stored[wanted]

    def remove(self, name: str) -> Path:
        """Delete the plan of this name and return where it was; those that ship stay."""
        with self._locked():
            path = self.get(name).path
            if path.parent != self.folder:
                raise PlanError(f"{name} comes with the package and is not removed")
            try:
                path.unlink()
            except OSError as error:
                raise unwritable(path, error) from error
        return path

    def _read(self, folder: Path) -> Iterator[Stored]:
        for path in _plan_files(folder):
            plan = self._load(path)
            if plan is not None:
                yield Stored(_name_of(path), path, plan)

    def _load(self, path: Path) -> Plan | None:
        """The plan of a file, read again only when the file has changed; None if it is damaged."""
        try:
            state = path.lstat()
        except OSError:
            return None  # another process has removed it
        stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
        if path not in self._known or self._known[path][0] != stamp:
            self._known[path] = stamp, _loaded(path)
        return self._known[path][1]

    def _free_path(self, plan: Plan) -> Path:
        """A file of the store that is not there yet: what is there may be damaged, but is kept."""
        name = plan_name(plan)
        names = (name, *(f"{name}-{i}" for i in range(2, 1000)))
        paths = (self.folder / f"{one}{SUFFIX}" for one in names)
        return next(path for path in paths if not os.path.lexists(path))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the store, so that one process at a time writes."""
        lock = self.folder / LOCK
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if lock.is_symlink():
                raise StorageError(f"{lock} is a link, which is not followed: delete it")
            holding = FileLock(lock)
            holding.acquire(timeout=PATIENCE)
        except Timeout as error:
            raise StorageError(
                f"another process has been writing into {self.folder} for {PATIENCE:.0f} seconds: "
                "try again when it is done"
            ) from error
        except StorageError:
            raise
        except OSError as error:
            raise unwritable(self.folder, error) from error
        try:
            yield
        finally:
            holding.release()


def default_folder() -> Path:
    """Where the plans of this user lie."""
    home = os.environ.get(HOME)
    return (Path(home) if home else user_data_path("tacache", appauthor=False)) / "plans"


def shipped_folders() -> tuple[Path, ...]:
    """The folders of the plans that come with the package, one a model."""
    return tuple(sorted(Path(str(files("tacache"))).glob("models/*/plans")))


def target_of(plan: Plan) -> str:
    """What a fitted plan was fitted to come close to: "run" or "flow"."""
    measured = plan.certificate
    return "flow" if measured is not None and measured.flow_drift is not None else "run"


def setting(origin: Origin, times: Sequence[float], breaks: Sequence[float] = ()) -> str:
    """All that must agree for a plan to be used unasked, as JSON: equal texts, equal settings."""
    facts = {**_identity(origin), **_latents(origin), "call": _settings(origin)}
    grid = [round(float(t), 4) for t in times]
    facts |= {"times": grid, "breaks": list(break_steps(times, breaks))}
    return json.dumps(facts, sort_keys=True)


def agrees(
    plan: Plan, origin: Origin, times: Sequence[float], breaks: Sequence[float] = ()
) -> bool:
    """Whether a plan was made for just such a run, on a model with the very same weights."""
    known = plan.host
    if known.weights is None or _identity(known) != _identity(origin):
        return False
    before, now = _settings(known), _settings(origin)
    asked = {*now, *(name for name, value in before.items() if isinstance(value, dict))}
    shapes, wanted = _latents(known), _latents(origin)
    return (
        all(before.get(name) == now.get(name) for name in asked)
        and all(value is None or shapes[name] == value for name, value in wanted.items())
        and same_grid(plan.times, times)
        and plan.break_steps == break_steps(times, breaks)
    )


def plan_name(plan: Plan) -> str:
    """The name that a plan gets in the store: its model, its budget, and a hash of its setting."""
    model = plan.host.model or plan.host.pipeline or plan.host.kind
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[\\/]", model.rstrip("\\/"))[-1])
    purpose = [setting(plan.host, plan.times, plan.breaks), plan.rule, target_of(plan)]
    digest = hashlib.sha256(json.dumps(purpose).encode()).hexdigest()[:8]
    words = [short.strip(".-")[:40] or "plan", f"{plan.evaluations}of{plan.steps}"]
    words += ["flow"] if target_of(plan) == "flow" else []
    return "-".join([*words, digest])


def _identity(origin: Origin) -> dict[str, Any]:
    """What runs the model: no value of it may differ, and unknown is a value as well."""
    config = origin.scheduler_config or {}
    guided = "true_cfg_scale" in (origin.call or {})  # where only a negative prompt guides
    return {
        "kind": origin.kind,
        "pipeline": origin.pipeline,
        "denoiser": origin.denoiser,
        "weights": origin.weights,
        "negative": origin.negative if guided else None,
        "scheduler": origin.scheduler,
        "solver": {name: config.get(name) for name in STEP_OPTIONS},
    }


def _latents(origin: Origin) -> dict[str, Any]:
    """What a call may not know before its first step."""
    shape = origin.latent_shape
    return {"latent_shape": None if shape is None else list(shape), "dtype": origin.dtype}


def _settings(origin: Origin) -> dict[str, JsonValue]:
    """The arguments of the call that shape its velocities: guidance, size, frames and the like."""
    call = origin.call or {}
    shaping = {
        name: value
        for name, value in call.items()
        if name in TEXTS or (isinstance(value, bool | int | float | dict | list) and value != {})
    }
    return {name: value for name, value in shaping.items() if name not in NO_SETTINGS}


def _replaces(plan: Plan, other: Plan) -> bool:
    """Whether two plans are for the same purpose."""
    a, b = (_purpose(one) for one in (plan, other))
    return a == b and same_grid(plan.times, other.times)


def _purpose(plan: Plan) -> list[Any]:
    facts = {**_identity(plan.host), **_latents(plan.host), "call": _settings(plan.host)}
    return [facts, plan.break_steps, plan.evaluations, plan.rule, target_of(plan)]


def _plan_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("the plans in %s cannot be read (%s)", folder, error.strerror)
        return []


def _loaded(path: Path) -> Plan | None:
    """The plan of a file, or None with a warning; links and pipes are not followed."""
    try:
        if path.is_symlink() or not path.is_file():
            raise PlanError("it is no plain file")
        return Plan.load(path)
    except PlanError as error:
        logger.warning("%s is not used (%s): remove or repair it", printable(path), error)
        return None


def _name_of(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)
