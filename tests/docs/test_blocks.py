"""Every command and every Python block of README and the tutorials runs, in a new folder."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import bagel_stand_in
from tests.docs import blocks
from tests.docs.blocks import EXEMPT, PAGES, ROOT

# what a page uses and leaves to the reader
GIVEN = {"README.md": {"velocity": lambda x, t: x / (1 + t), "noise": torch.randn(4, 64)}}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A new folder with BAGEL's stand-in, a store of plans of its own, and tiny models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACACHE_HOME", str(tmp_path / "home"))
    bagel_stand_in.write_checkout(Path("Bagel"))
    bagel_stand_in.write_weights(Path("BAGEL-7B-MoT"))
    blocks.use_tiny_models(monkeypatch)
    small = {"image_shapes": bagel_stand_in.SIZE}
    kind = type(bagel_stand_in.inferencer())
    blocks.set_defaults(monkeypatch, kind.interleave_inference, small)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("folder")
def test_every_block_runs(page):
    names: dict[str, Any] = dict(GIVEN.get(page, {}))
    with bagel_stand_in.no_checkout_loaded():
        for block in blocks.blocks(page):
            if block.kind == "python":
                exec(compile(block.text, page, "exec"), names)
                continue
            for words in blocks.commands(block):
                if blocks.exemption(words) is None:
                    blocks.type_command(words)


def test_the_exemptions_are_needed():
    typed = [
        " ".join(words[:2])
        for page in PAGES
        for block in blocks.blocks(page)
        if block.kind == "console"
        for words in blocks.commands(block)
    ]
    assert set(EXEMPT) <= set(typed)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(.*)$", text, flags=re.MULTILINE)
    assert all(kind in ("console", "python", "text") for kind in fences[::2])
    assert not any(fences[1::2])
