"""What other distributions add to the library, by entry points."""

from importlib.metadata import EntryPoint, entry_points

COMMANDS = "tacache.commands"  # name of a command -> the function that the command line runs
MODELS = "tacache.models"  # name of a model -> its facts, an `Embedded`
RIVALS = "tacache.rivals"  # "studio" -> the module whose methods of others the studio offers


def extensions(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; none is loaded yet."""
    return {point.name: point for point in sorted(entry_points(group=group))}
