"""Files of tensors beside plain values: complete or not there, and read without running code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tacache.storage.atomic import unwritable, writing


def save_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write tensors and plain values in the place of what the file held before."""
    with writing(path) as draft, draft.open("wb") as file:
        try:
            torch.save(dict(values), file)
        except RuntimeError as error:  # torch hides what the system said of a full disk behind it
            said = error.__context__
            raise unwritable(path, said if isinstance(said, OSError) else error) from error


def load_values(path: Path) -> dict[str, Any]:
    """Return what `save_values` wrote; whatever unpickling raises on a foreign or damaged file."""
    values: dict[str, Any] = torch.load(path, weights_only=True)
    return values
