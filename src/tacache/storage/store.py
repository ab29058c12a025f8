"""The plan store: a folder of plan files per user, found by what they were fitted for.

Only fitted plans are found: they carry a certificate of what they do.
"""

import difflib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from tacache.errors import PlanError, StorageError, printable
from tacache.extensions import MODELS, extensions
from tacache.plan import Plan
from tacache.storage.atomic import unwritable
from tacache.storage.hub import SUFFIX
from tacache.storage.origin import Origin
from tacache.storage.signature import RunSignature, plan_name, same_purpose, target_of

__all__ = ["PlanStore", "Stored", "default_folder", "shipped_folders", "target_of"]

logger = logging.getLogger("tacache.store")

HOME = "TACACHE_HOME"  # the environment variable that moves the store
MAX_ANSWERS = 64  # runs whose plans are remembered
PATIENCE = 30.0  # seconds to wait for another process that writes
LOCK = ".lock"


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
        self._told: set[Path] = set()
        self._read_before: dict[Path, tuple[dict[str, tuple[int, int, int]], list[Stored]]] = {}
        self._answers: dict[Any, tuple[list[Stored], list[Stored]]] = {}  # by folder and run

    def put(self, plan: Plan) -> Stored:
        """Write a plan into the store; it takes the place of one for the same purpose.

        The same purpose is the same signature, number of evaluations, rule and target. A disk that
        is full or cannot be written to is a StorageError, and what was there stays.
        """
        with self._locked():
            there = self.like(plan)
            path = self._free_path(plan) if there is None else there.path
            plan.save(path)
        return Stored(self._name(path), path, plan)

    def plans(self) -> list[Stored]:
        """Return every plan of the store by its name; a damaged file is skipped with a warning."""
        return list(self._read(self.folder))

    def shipped_plans(self) -> list[Stored]:
        """Return every plan that comes with the package."""
        return [stored for folder in self.shipped for stored in self._read(folder)]

    def ships(self, stored: Stored) -> bool:
        """Return whether a plan comes with an installed model, and not from the user."""
        return stored.path.parent != self.folder

    def like(self, plan: Plan) -> Stored | None:
        """Return the plan of the store that is for the same purpose, if there is one."""
        return next((stored for stored in self.plans() if same_purpose(plan, stored.plan)), None)

    def find(
        self,
        origin: Origin,
        times: Sequence[float],
        evaluations: int,
        breaks: Sequence[float] = (),
        latents: Mapping[str, tuple[float, ...]] = {},
    ) -> Stored | None:
        """Return the fitted plan with so many evaluations that agrees with this run, or None.

        One that was fitted to the run comes before one that was fitted to the flow, and one of the
        user's before one that ships. A latent shape or dtype that `origin` does not know is not
        compared; without a fingerprint of the weights no plan is found.
        """
        for folder in (self.folder, *self.shipped):
            agreeing = self._agreeing(folder, origin, times, breaks, latents)
            stored = [entry for entry in agreeing if entry.plan.evaluations == evaluations]
            if stored:
                return min(stored, key=lambda entry: target_of(entry.plan) == "flow")
        return None

    def fitted_for(
        self,
        origin: Origin,
        times: Sequence[float],
        breaks: Sequence[float] = (),
        latents: Mapping[str, tuple[float, ...]] = {},
    ) -> list[Stored]:
        """Return every fitted plan that agrees with this run, the user's before those that ship."""
        folders = (self.folder, *self.shipped)
        runs = (self._agreeing(folder, origin, times, breaks, latents) for folder in folders)
        return [stored for agreeing in runs for stored in agreeing]

    def get(self, name: str) -> Stored:
        """Return the plan of this name, or an error that names a similar one."""
        stored = {entry.name: entry for entry in (*self.shipped_plans(), *self.plans())}
        wanted = name.removesuffix(SUFFIX)
        if wanted not in stored:
            close = difflib.get_close_matches(wanted, stored, n=1)
            hint = f"did you mean {close[0]}?" if close else "tacache plans lists those there are"
            raise PlanError(f"there is no plan {name!r} in {self.folder}: {hint}")
        return stored[wanted]

    def path_of(self, name: str) -> Path:
        """Return the file of this name, damaged or not, or an error that names a similar one."""
        own = self.folder / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
        return own if own.name in self._names(self.folder) else self.get(name).path

    def remove(self, name: str) -> Path:
        """Delete the plan of this name and return where it was; those that ship stay."""
        with self._locked():
            path = self.path_of(name)
            if path.parent != self.folder:
                raise PlanError(f"{name} comes with the package and is not removed")
            try:
                path.unlink()
            except OSError as error:
                raise unwritable(path, error) from error
        return path

    def _agreeing(
        self,
        folder: Path,
        origin: Origin,
        times: Sequence[float],
        breaks: Sequence[float],
        latents: Mapping[str, tuple[float, ...]],
    ) -> list[Stored]:
        """Return the fitted plans of a folder that agree with a run, compared once a run."""
        plans = self._read(folder)
        key = (folder, origin.model_dump_json(), tuple(times), tuple(breaks), *latents.items())
        before = self._answers.pop(key, None)
        if before is None or before[0] is not plans:
            run = RunSignature(origin, tuple(times), tuple(breaks), latents=latents)
            fitted = (stored for stored in plans if stored.plan.rule == "fitted")
            agreeing = [stored for stored in fitted if run.agrees(stored.plan)]
            before = plans, agreeing
        self._answers[key] = before
        while len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return before[1]

    def _read(self, folder: Path) -> list[Stored]:
        """Return the plans of a folder; the very same list until one of its files has changed."""
        stamps = self._stamps(folder)
        if folder not in self._read_before or self._read_before[folder][0] != stamps:
            loaded = [(folder / name, self._load(folder / name, s)) for name, s in stamps.items()]
            plans = [Stored(self._name(p), p, plan) for p, plan in loaded if plan is not None]
            self._read_before[folder] = stamps, plans
        return self._read_before[folder][1]

    def _stamps(self, folder: Path) -> dict[str, tuple[int, int, int]]:
        """Return what changes with each plan file of a folder, by the names in their order."""
        stamps = {}
        for name in self._names(folder):
            try:
                state = os.lstat(os.path.join(folder, name))
            except OSError:
                continue  # another process has removed it
            stamps[name] = (state.st_mtime_ns, state.st_size, state.st_ino)
        return stamps

    def _name(self, path: Path) -> str:
        """Return the name of a plan; one that ships has its model's name before it."""
        name = path.name.removesuffix(SUFFIX)
        return name if path.parent == self.folder else f"{path.parent.parent.name}-{name}"

    def _names(self, folder: Path) -> list[str]:
        """Return the names of a folder's plan files; a folder that cannot be read is told once."""
        try:
            return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
        except FileNotFoundError:
            return []
        except OSError as error:
            if folder not in self._told:
                self._told.add(folder)
                logger.warning("the plans in %s cannot be read (%s)", folder, error.strerror)
            return []

    def _load(self, path: Path, stamp: tuple[int, int, int]) -> Plan | None:
        """Return the plan of a file, read again when the file has changed; None if damaged."""
        if path not in self._known or self._known[path][0] != stamp:
            self._known[path] = stamp, _loaded(path)
        return self._known[path][1]

    def _free_path(self, plan: Plan) -> Path:
        """Return a file of the store that is not there yet, so that even damaged ones are kept."""
        name = plan_name(plan)
        names = (name, *(f"{name}-{i}" for i in range(2, 1000)))
        paths = (self.folder / f"{candidate}{SUFFIX}" for candidate in names)
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
    """Return where the plans of this user lie."""
    home = os.environ.get(HOME)
    return (
        Path(home).expanduser() if home else user_data_path("tacache", appauthor=False)
    ) / "plans"


def shipped_folders() -> tuple[Path, ...]:
    """Return the folders of the plans that come with installed models, one a model."""
    return tuple(point.load().folder / "plans" for point in extensions(MODELS).values())


def _loaded(path: Path) -> Plan | None:
    """Return the plan of a file, or None with a warning; links and pipes are not followed."""
    try:
        if path.is_symlink() or not path.is_file():
            raise PlanError("it is no plain file")
        return Plan.load(path)
    except PlanError as error:
        logger.warning("%s is not used (%s): remove or repair it", printable(path), error)
        return None
