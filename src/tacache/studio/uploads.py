"""Files that people bring: read as data alone, within bounds, and told apart by what they say."""

from pathlib import Path

from tacache.errors import PlanError, ProfileError
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.reading import parse_json

LARGEST = 2**20  # bytes: a plan of 50 steps has a few thousand


def read_upload(path: Path) -> Plan | Profile:
    """The plan or profile of a file; an error says in one sentence why it is neither."""
    name = path.name[:80]
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise PlanError(f"{name} is larger than {LARGEST // 2**20} MiB: no plan or profile is")
    try:
        text = content.decode("utf-8")
        fields = parse_json(text)
    except ValueError as error:
        raise PlanError(
            f"{name} is no JSON file ({error}): give a plan or a profile of tacache"
        ) from error
    found = fields.get("format") if isinstance(fields, dict) else None
    kinds: dict[object, type[Plan] | type[Profile]] = {Plan.FORMAT: Plan, Profile.FORMAT: Profile}
    if not isinstance(found, str) or found not in kinds:
        raise PlanError(
            f"{name} is neither a plan nor a profile of tacache: its field 'format' says so of "
            "files that are"
        )
    return kinds[found].from_json(text, name=name)


def profile_on(profile: Profile, times: tuple[float, ...], model: str) -> Profile:
    """A profile that somebody brings, on the grid of the model, if it is the model's."""
    if profile.host.model not in (None, model):
        raise ProfileError(f"the profile is of {profile.host.model}, this is {model}")
    return profile.resample(times)
