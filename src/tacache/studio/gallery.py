"""What one person has made: files with their settings, and all of them in one archive."""

import json
import zipfile
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from tacache.hosts import file_stem, write
from tacache.storage.atomic import writing
from tacache.studio.attempts import Attempt

MAX_ENTRIES = 48  # entries; the oldest gives way


class Entry(NamedTuple):
    """An accelerated picture and the full-step one, as files, with their settings."""

    fast: Path
    full: Path
    settings: dict[str, JsonValue]

    @property
    def caption(self) -> str:
        """Return one line below the picture."""
        settings = self.settings
        rule = settings["rule"] or "by quality"
        budget = f"{settings['evaluated']} of {settings['steps']}"
        return f"{settings['prompt']} (seed {settings['seed']}, {rule}, {budget})"


class Gallery:
    """The pictures of one person, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self.entries: list[Entry] = []

    def add(self, attempt: Attempt, model: str, fps: int) -> Entry:
        """Write a picture beside its full-step one; a clip without loss."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = self._folder / file_stem(self._made, attempt.options.prompt, attempt.options.seed)
        self._made += 1
        files = [
            write(drawn.pixels, stem.with_name(f"{stem.name}-{word}"), ".webp", fps)
            for word, drawn in (("accelerated", attempt.fast), ("full", attempt.full))
        ]
        entry = Entry(files[0], files[1], attempt.settings(model))
        self.entries.append(entry)
        while len(self.entries) > MAX_ENTRIES:
            oldest = self.entries.pop(0)
            oldest.fast.unlink(missing_ok=True)
            oldest.full.unlink(missing_ok=True)
        return entry

    def export(self) -> Path:
        """Return an archive of all pictures, with one JSON file of settings for each of them."""
        target = self._folder / "tacache-gallery.zip"
        self._folder.mkdir(parents=True, exist_ok=True)
        with writing(target) as draft, zipfile.ZipFile(draft, "w") as archive:
            for entry in self.entries:
                name = entry.fast.stem.removesuffix("-accelerated")
                archive.write(entry.fast, entry.fast.name)
                archive.write(entry.full, entry.full.name)
                archive.writestr(f"{name}.json", json.dumps(entry.settings, indent=2) + "\n")
        return target
