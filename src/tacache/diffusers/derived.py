"""Scheduler classes derived from others, and schedulers made after the pattern of another."""

from typing import Any


def subclass(name: str, parent: type, members: dict[str, Any], *mixins: type) -> Any:
    """Make a class with these members that pipelines take for its parent.

    Its name is that of the parent with `name` before it.
    """
    if not hasattr(parent, "scale_model_input"):  # Bria calls it on every class but the plain one
        members = {"scale_model_input": lambda self, sample, *args, **kwargs: sample, **members}
    return type(f"{name}{parent.__name__}", (*mixins, parent), members)


def like(plain: Any, kind: Any, **more: Any) -> Any:
    """Make a scheduler of the class `kind` with the configuration of another, and `more`."""
    made = kind.from_config(plain.config, **more)
    copy_shift(plain, made)
    return made


def copy_shift(source: Any, target: Any) -> None:
    """Give a scheduler the shift of another: `set_shift` does not change the configuration."""
    if hasattr(source, "_shift"):
        target._shift = source._shift
