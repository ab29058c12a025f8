"""Entry points for vLLM-Omni and SGLang; SGLang's registry is a stand-in, read from 0.5.23."""

import importlib
import json
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import diffusers
import pytest

from tacache import Plan, time_grid
from tacache.diffusers import plugins

ROOT = Path(__file__).parents[2]
GROUPS = ("vllm_omni.general_plugins", "sglang.multimodal_gen.plugins")


class Registry:
    """Classes by name, or where to import them from, as SGLang's `ModelRegistry` keeps them."""

    def __init__(self) -> None:
        self.registered_models: dict[str, Any] = dict.fromkeys(plugins.IN_SGLANG, Own)

    def register_model(self, model_arch: str, model_cls: Any) -> None:
        """Keep a class, or where it is."""
        self.registered_models[model_arch] = model_cls

    def resolve_model_cls(self, name: str) -> tuple[Any, str]:
        """The class by its name."""
        found = self.registered_models[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        return found, name


class Own(diffusers.FlowMatchEulerDiscreteScheduler):
    """SGLang has schedulers of its own by these names."""


@pytest.fixture
def registry(monkeypatch) -> Registry:
    """SGLang's registry, where SGLang is not installed."""
    made = Registry()
    path = "sglang.multimodal_gen.runtime.models.registry"
    module: Any = types.ModuleType(path)
    module.ModelRegistry = made
    parts = path.split(".")
    for n in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), types.ModuleType(parts[n - 1]))
    monkeypatch.setitem(sys.modules, path, module)
    return made


@pytest.mark.parametrize("group", GROUPS)
def test_the_entry_points_lead_to_functions(group):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = project["entry-points"][group].items()
    assert callable(EntryPoint(*found, group).load())


def test_vllm_omni_needs_the_import_alone():
    plugins.load_in_vllm_omni()
    assert "tacache.diffusers.schedulers" in sys.modules


def test_sglang_finds_a_plan_over_its_own_scheduler(registry):
    plugins.load_in_sglang()
    plugins.load_in_sglang()  # engines may load a plugin again
    plan = Plan.full(time_grid(4))
    config = {"plan": json.loads(plan.to_json()), "strength": 1.0, "breaks": []}
    found, _ = registry.resolve_model_cls("PlanFlowMatchEulerDiscreteScheduler")
    scheduler = found(**config)
    assert isinstance(scheduler, Own)
    assert scheduler.plan == plan


def test_a_name_that_is_not_ours_is_no_attribute(registry):
    with pytest.raises(AttributeError, match="has no attribute 'PlanHeunScheduler'"):
        plugins.__getattr__("PlanHeunScheduler")
