"""Where profiles and plans lie: in ComfyUI's models folder, under `tacache`."""

from pathlib import Path

import folder_paths

from tacache import HostError, Plan, Profile
from tacache.storage.store import PlanStore

FOLDER = "tacache"
PROFILE, PLAN = ".profile.json", ".plan.json"
KINDS: dict[str, type[Profile] | type[Plan]] = {PROFILE: Profile, PLAN: Plan}
NONE = "none"
STORED = "stored or instant"  # a plan of the user's store that fits the run, else an instant one

folder_paths.add_model_folder_path(FOLDER, str(Path(folder_paths.models_dir) / FOLDER))


def names(suffix: str) -> list[str]:
    """Return what a node offers: `none`, and every file of this kind."""
    return [NONE, *sorted(n for n in folder_paths.get_filename_list(FOLDER) if n.endswith(suffix))]


def stamp(name: str | None) -> float:
    """Return a number that changes with the file, so that ComfyUI reads it again.

    Where the name comes from another node, ComfyUI does not know it yet and gives None.
    """
    if name == STORED:
        folder = PlanStore().folder
        return folder.stat().st_mtime if folder.is_dir() else 0.0
    path = folder_paths.get_full_path(FOLDER, name) if name else None
    return Path(path).stat().st_mtime if path else 0.0


def load_profile(name: str) -> Profile:
    """Load the profile of this name."""
    return Profile.load(_found(name))


def load_plan(name: str) -> Plan:
    """Load the plan of this name."""
    return Plan.load(_found(name))


def target(name: str, suffix: str) -> Path:
    """Return where a file of this name is written; refuse what could not be written.

    Names may not lead out of the folder, and a file of something else is not replaced.
    """
    folder = Path(folder_paths.get_folder_paths(FOLDER)[0]).resolve()
    path = (folder / (name.removesuffix(suffix) + suffix)).resolve()
    if not name.removesuffix(suffix).strip() or folder not in path.parents:
        raise HostError(f"{name!r} is no name for a file in {folder}: give one like 'flux'")
    return KINDS[suffix].check_target(path)


def missing(name: str | None) -> str | None:
    """Return what to tell the user where a chosen file is not there; None where it is."""
    if name in (None, NONE, STORED) or folder_paths.get_full_path(FOLDER, name) is not None:
        return None
    folder = folder_paths.get_folder_paths(FOLDER)[0]
    return f"there is no {name!r} in {folder}: calibrate, or put the file there"


def _found(name: str) -> Path:
    if problem := missing(name):
        raise HostError(problem)
    return Path(folder_paths.get_full_path(FOLDER, name))
