"""The people who look at the page: each has pictures, plans and a profile of their own."""

import shutil
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.store import PlanStore
from tacache.studio.choices import Known, RivalMethods, rivals_on
from tacache.studio.gallery import Gallery
from tacache.studio.model import StudioModel
from tacache.studio.shelf import Shelf

MAX_SESSIONS = 200  # people at a time; who was away longest is forgotten


@dataclass
class Session:
    """What belongs to one person."""

    folder: Path
    steps: int  # of full runs
    profile: Profile | None
    gallery: Gallery
    own: Plan | None = None
    drift: list[tuple[int, float]] = field(default_factory=list)
    _stops: dict[str, threading.Event] = field(default_factory=dict)

    def begin(self, kind: str) -> threading.Event:
        """Stop the job of this kind that runs, if any, and return what stops the next one."""
        self.stop(kind)
        self._stops[kind] = threading.Event()
        return self._stops[kind]

    def stop(self, kind: str | None = None) -> None:
        """Ask the job of this kind to stop; without a kind, all jobs."""
        for name, stop in self._stops.items():
            if kind in (None, name):
                stop.set()


class Studio:
    """The model with its plans, and everybody who looks at it."""

    def __init__(self, model: StudioModel, store: PlanStore, folder: Path) -> None:
        self.model, self.store, self.folder = model, store, folder
        self._rivals: dict[int, RivalMethods | None] = {}  # by steps
        self.profile = model.shipped_profile()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def session(self, key: str | None) -> Session:
        """Return the session of this key, which begins where it is new."""
        name = key or "nobody"
        with self._lock:
            if name not in self._sessions:
                # a name of our own: a key is whatever a browser sends
                folder = Path(tempfile.mkdtemp(prefix="session-", dir=self.folder))
                self._sessions[name] = Session(
                    folder, self.model.steps, self.profile, Gallery(folder / "gallery")
                )
            self._sessions.move_to_end(name)
            session = self._sessions[name]
            oldest = next(iter(self._sessions)) if len(self._sessions) > MAX_SESSIONS else None
        if oldest is not None:
            self.leave(oldest)
        return session

    def leave(self, key: str | None) -> None:
        """End a session: its job stops, and its files go."""
        with self._lock:
            session = self._sessions.pop(key or "nobody", None)
        if session is not None:
            _close(session)

    def known(self, session: Session) -> Known:
        """Return what plans are made of for this person, with as many steps as are set."""
        model = self.model.with_steps(session.steps)
        if model.steps not in self._rivals:
            self._rivals[model.steps] = rivals_on(model)
        profile = None if session.profile is None else session.profile.resample(model.times)
        shelf = Shelf(model, self.store)
        return Known(model, shelf, profile, session.own, self._rivals[model.steps])


def _close(session: Session) -> None:
    session.stop()
    shutil.rmtree(session.folder, ignore_errors=True)
