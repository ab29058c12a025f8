"""A cache in a pipeline's transformer for one call: put in, counted, and taken out again."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from diffusers.hooks import HookRegistry

from tacache.errors import HostError
from tacache_lab.methods.inside.families import PIPELINES, family_of
from tacache_lab.methods.inside.metering import BlockMeter, metered


@dataclass(frozen=True)
class Site:
    """Where a cache goes: the model, N steps of a run, and how often a step calls the model."""

    transformer: Any
    steps: int
    branches: int
    meter: BlockMeter


def check_supported(pipe: Any) -> None:
    """Refuse a pipeline into whose model no cache can be put."""
    name, transformer = type(pipe).__name__, getattr(pipe, "transformer", None)
    if transformer is None:
        raise HostError(f"{name} has no transformer: caches inside the model run on {PIPELINES}")
    family_of(transformer)
    if getattr(pipe, "transformer_2", None) is not None:
        raise HostError(
            f"this {name} has two transformers: caches inside the model run on those with one"
        )
    if "cache_context" not in inspect.unwrap(type(pipe).__call__).__code__.co_names:
        raise HostError(
            f"{name} does not tell a cache its guidance branch (cache_context): caches inside the "
            f"model run on {PIPELINES}"
        )
    if transformer.is_cache_enabled or "cache_context" in vars(transformer):
        raise HostError(
            "there is a cache in the model already: one at a time, for one call at a time"
        )


@contextmanager
def placed(pipe: Any, cache: Any, steps: int, branches: int) -> Iterator[BlockMeter]:
    """Put a cache into the pipeline's transformer for the length of a `with` block.

    `cache` has `install(site)`. Its state is new, so one block is for one call of the pipeline.
    However the block ends, the transformer is left as it was.
    """
    check_supported(pipe)
    transformer = pipe.transformer
    with restored(transformer), metered(transformer) as meter:
        cache.install(Site(transformer, steps, branches, meter))
        _forget_children(transformer)
        yield meter


@contextmanager
def restored(module: Any) -> Iterator[None]:
    """Undo at the end what was set on a module and those in it, or hooked into them."""
    before = [Before.of(part) for part in module.modules()]
    try:
        yield
    finally:
        for part in before:
            part.bring_back()
        _forget_children(module)


@dataclass(frozen=True)
class Before:
    """A module as it was: what is set on it, the modules in it, and the hooks of diffusers."""

    module: Any
    own: dict[str, Any]
    children: dict[str, Any]
    hooks: set[str]

    @classmethod
    def of(cls, module: Any) -> "Before":
        """Note a module as it is now."""
        return cls(module, dict(vars(module)), dict(module._modules), _hook_names(module))

    def bring_back(self) -> None:
        """Undo what has changed since."""
        module = self.module
        for name in _hook_names(module) - self.hooks:
            module._diffusers_hook.remove_hook(name, recurse=False)
        for name in set(vars(module)) - set(self.own):
            del vars(module)[name]
        vars(module).update(self.own)
        # cache-dit swaps lists of blocks meanwhile, which leaves them in another order
        module._modules.clear()
        module._modules.update(self.children)


def _hook_names(module: Any) -> set[str]:
    registry = vars(module).get("_diffusers_hook")
    return set(registry.hooks) if registry else set()


def _forget_children(module: Any) -> None:
    """Make diffusers renew its list of modules with hooks."""
    if "_diffusers_hook" in vars(module):
        HookRegistry.check_if_exists_or_initialize(module).invalidate_child_registries_cache()
