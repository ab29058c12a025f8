"""Records: one line of JSON a measurement, appended; what is there is not measured again."""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

KEY = ("model", "mode", "what", "method", "budget", "steps", "device")
PACKAGES = ("torch", "diffusers", "transformers", "cache_dit", "tacache")
Record = dict[str, Any]


class Records:
    """A file of records that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._done = {key_of(record) for record in read(path) if "error" not in record}

    def has(self, record: Record) -> bool:
        """Whether this measurement is in the file; failed ones are not."""
        return key_of(record) in self._done

    def add(self, record: Record) -> None:
        """Append the record: from here on it is safe."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = "".join(json.dumps(earlier) + "\n" for earlier in read(self.path))
        if self.path.exists() and self.path.read_text() != whole:
            self.path.write_text(whole)  # without the line that was cut off
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if "error" not in record:
            self._done.add(key_of(record))


def read(path: Path) -> list[Record]:
    """All records of a file; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise SystemExit(f"{path}, line {number}: no record ({error})") from error
    return records


def key_of(record: Record) -> tuple[Any, ...]:
    """What makes two records the same measurement."""
    return tuple(record.get(name) for name in KEY)


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's."""
    return torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()


def versions() -> dict[str, str]:
    """The measured packages that are loaded."""
    loaded = {name: module for name in PACKAGES if (module := sys.modules.get(name))}
    return {name: str(getattr(module, "__version__", "?")) for name, module in loaded.items()}
