"""The plan store: a folder of plan files per user, found by what they were fitted for.

Only fitted plans are found: they carry a certificate of what they do.
"""

import difflib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from tacache.errors import PlanError, StorageError, printable
from tacache.plan import Plan
from tacache.profile import Origin
from tacache.storage.agreement import agrees, plan_name, same_purpose, setting, target_of
from tacache.storage.atomic import unwritable
from tacache.storage.hub import SUFFIX

__all__ = ["PlanStore", "Stored", "default_folder", "setting", "shipped_folders", "target_of"]

logger = logging.getLogger("tacache.store")

HOME = "TACACHE_HOME"  # the environment variable that moves the store
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

    def put(self, plan: Plan) -> Stored:
        """Write a plan into the store; it takes the place of one for the same purpose.

        The same purpose is the same setting, number of evaluations, rule and target. A disk that is
        full or cannot be written to is a StorageError, and what was there stays.
        """
        with self._locked():
            there = self.like(plan)
            path = self._free_path(plan) if there is None else there.path
            plan.save(path)
        return Stored(self._name(path), path, plan)

    def plans(self) -> list[Stored]:
        """Every plan of the store by its name; a damaged file is named in a warning and skipped."""
        return list(self._read(self.folder))

    def shipped_plans(self) -> list[Stored]:
        """Every plan that comes with the package."""
        return [one for folder in self.shipped for one in self._read(folder)]

    def like(self, plan: Plan) -> Stored | None:
        """The plan of the store that is for the same purpose, if there is one."""
        return next((one for one in self.plans() if same_purpose(plan, one.plan)), None)

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

    def path_of(self, name: str) -> Path:
        """The file of this name, which may be damaged, or an error that names a similar one."""
        own = self.folder / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
        return own if own in self._files(self.folder) else self.get(name).path

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

    def _read(self, folder: Path) -> Iterator[Stored]:
        for path in self._files(folder):
            plan = self._load(path)
            if plan is not None:
                yield Stored(self._name(path), path, plan)

    def _name(self, path: Path) -> str:
        """The name of a plan; one that ships has its model's name before it."""
        name = path.name.removesuffix(SUFFIX)
        return name if path.parent == self.folder else f"{path.parent.parent.name}-{name}"

    def _files(self, folder: Path) -> list[Path]:
        """The plan files of a folder; one that cannot be read is told once."""
        try:
            return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
        except FileNotFoundError:
            return []
        except OSError as error:
            if folder not in self._told:
                self._told.add(folder)
                logger.warning("the plans in %s cannot be read (%s)", folder, error.strerror)
            return []

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
    return (
        Path(home).expanduser() if home else user_data_path("tacache", appauthor=False)
    ) / "plans"


def shipped_folders() -> tuple[Path, ...]:
    """The folders of the plans that come with the package, one a model."""
    return tuple(sorted(Path(str(files("tacache"))).glob("models/*/plans")))


def _loaded(path: Path) -> Plan | None:
    """The plan of a file, or None with a warning; links and pipes are not followed."""
    try:
        if path.is_symlink() or not path.is_file():
            raise PlanError("it is no plain file")
        return Plan.load(path)
    except PlanError as error:
        logger.warning("%s is not used (%s): remove or repair it", printable(path), error)
        return None
