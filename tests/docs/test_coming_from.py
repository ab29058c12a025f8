"""The page for people who come from other caches names options that these have."""

import inspect
import re

import pytest
from tests.docs.readme import ROOT

PAGE = (ROOT / "docs/how-to/coming-from.md").read_text(encoding="utf-8")


def options_of(kind: type) -> set[str]:
    return set(inspect.signature(kind).parameters)


def test_the_options_of_cache_dit_are_its_own():
    cache_dit = pytest.importorskip("cache_dit")
    known = options_of(cache_dit.DBCacheConfig) | options_of(cache_dit.TaylorSeerCalibratorConfig)
    lines = [line for line in PAGE.splitlines() if "cache-dit's" in line or "TaylorSeerC" in line]
    theirs = " ".join(line.split("|")[1].rpartition("cache-dit's")[2] for line in lines)
    named = set(re.findall(r"`(?:\w+\()?([a-z]\w*_\w+)(?==|`)", theirs))
    named |= set(re.findall(r"`(\w+_blocks)`", theirs))
    assert {"steps_computation_mask", "Fn_compute_blocks", "taylorseer_order"} <= named
    assert named <= known
    assert all(hasattr(cache_dit, name) for name in re.findall(r"cache_dit\.(\w+)", PAGE))


def test_the_options_of_diffusers_are_its_own():
    from diffusers import MagCacheConfig

    named = set(re.findall(r"MagCacheConfig\((\w+)=", PAGE))
    assert named == {"threshold", "calibrate"}
    named |= {"retention_ratio", "max_skip_steps", "num_inference_steps", "mag_ratios"}
    assert all(f"`{name}`" in PAGE or f"({name}=" in PAGE for name in named)
    assert named <= options_of(MagCacheConfig)
