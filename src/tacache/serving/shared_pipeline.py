"""One pipeline for many requests: each gets a copy with a scheduler of its own and shared networks.

Objects stand in the copies for networks and tokenizers, and pass for these.
"""

import copy
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tacache.diffusers.applying import apply, apply_as, plain_scheduler
from tacache.diffusers.calls import midway_strength
from tacache.diffusers.joint import scheduler_names
from tacache.errors import HostError
from tacache.plan import Plan
from tacache.serving.engine import Engine
from tacache.serving.request import Adapters, GenerationRequest

DENOISERS = ("transformer", "transformer_2", "unet", "prior")
MAX_FOLLOWERS = 64  # plans whose pipelines are kept
ENCODING = ("tokenizer", "text_encoder", "image_encoder", "processor")  # begin their names


class SharedPipeline:
    """Makes the copies of one pipeline that requests call."""

    def __init__(self, pipe: Any) -> None:
        check_shareable(pipe)
        self.pipe = pipe
        parts = {name: part for name, part in pipe.components.items() if part is not None}
        encoding = threading.RLock()
        self._encoders = {
            name: locked(part, encoding)
            for name, part in parts.items()
            if name.startswith(ENCODING)
        }
        self._denoisers = {name: parts[name] for name in DENOISERS if name in parts}
        self._forwards = {name: forward_of(part) for name, part in self._denoisers.items()}
        self._vae = parts.get("vae")
        self._followers = Followers(self._plain_copy)
        self._takes_generator = "generator" in inspect.signature(pipe.__call__).parameters
        shared = {**self._denoisers, **({} if self._vae is None else {"vae": self._vae})}
        self._answers = {
            name: {"device": part.device, "dtype": part.dtype, **without_walks(part)}
            for name, part in shared.items()
        }

    def with_locked_encoders(self) -> Any:
        """Return a copy whose tokenizers and encoders other threads may use meanwhile."""
        copied = copy.copy(self.pipe)
        copied.__dict__.update(self._encoders)
        return copied

    def following(self, plan: Plan | None, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return a copy with a scheduler of its own that carries the plan, and the call to make."""
        call = self._with_generator(call)
        if plan is None:
            return self._plain_copy(), call
        strength = midway_strength(self.pipe, call)
        if strength is None:
            copied = copy.copy(self.pipe)
            copied._progress_bar_config = {"disable": True}
            apply_as(copied, self._followers.of(plan))
            return copied, call
        copied = self._plain_copy()
        apply(copied, plan, strength=strength)
        return copied, {**call, "strength": 1.0}

    def _plain_copy(self) -> Any:
        """Return a copy with plain schedulers of its own."""
        copied = copy.copy(self.pipe)
        for name in scheduler_names(self.pipe):
            copied.__dict__[name] = copy.deepcopy(plain_scheduler(self.pipe, name))
        copied._progress_bar_config = {"disable": True}
        return copied

    def share(self, request: GenerationRequest, engine: Engine) -> None:
        """Put stand-ins into a request's copy, whose calls the engine answers."""
        stand_ins: dict[str, Any] = dict(self._encoders)
        for name, part in self._denoisers.items():
            call = _evaluating(request, engine, self._forwards[name])
            stand_ins[name] = StandIn(part, {**self._answers[name], "__call__": call})
        if self._vae is not None:
            methods = {
                "decode": functools.partial(engine.decode, request, self._vae.decode),
                "encode": functools.partial(engine.call_alone, request, self._vae.encode),
            }
            stand_ins["vae"] = StandIn(self._vae, {**self._answers["vae"], **methods})
        request.pipe.__dict__.update(stand_ins)

    def _with_generator(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return the call with a generator: that of a GPU may be part of a capture meanwhile."""
        is_given = call.get("generator") is not None or not self._takes_generator
        if is_given or self.pipe.device.type != "cuda":
            return call
        generator = torch.Generator()
        generator.seed()
        return {**call, "generator": generator}


class Followers:
    """Pipelines that follow the plans which requests brought last, to be copied for the next."""

    def __init__(self, copied: Callable[[], Any]) -> None:
        self._copied = copied
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Plan, Any]] = {}  # by the plan's id, the latest last

    def of(self, plan: Plan) -> Any:
        """Return a pipeline that follows the plan."""
        with self._lock:
            kept = self._kept.pop(id(plan), None)
            if kept is None:
                follower = self._copied()
                apply(follower, plan)
                kept = plan, follower
            self._kept[id(plan)] = kept
            if len(self._kept) > MAX_FOLLOWERS:
                del self._kept[next(iter(self._kept))]
        return kept[1]


def _evaluating(
    request: GenerationRequest, engine: Engine, forward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what a request calls in place of the denoiser."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if request.first_asked is None:
            request.first_asked = time.monotonic()
        if not request.evaluated:
            request.calls += 1
        return engine.evaluate(request, forward, *args, **kwargs)

    return call


class StandIn:
    """Passes for the real object but for some of its methods and attributes, which are others.

    As with a compiled network, `_orig_mod` is the real one.
    """

    def __init__(self, real: Any, methods: dict[str, Any]) -> None:
        self.__dict__.update(_orig_mod=real, _methods=methods)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._orig_mod)

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__["_methods"]
        return methods[name] if name in methods else getattr(self.__dict__["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_orig_mod"], name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the method gives that replaces the real object's call."""
        return self.__dict__["_methods"]["__call__"](*args, **kwargs)


def locked(real: Any, lock: threading.RLock) -> StandIn:
    """Return the object with all its methods under a lock: one thread uses it at a time.

    A fast tokenizer keeps how it pads and cuts as a state that every call sets, and pipelines call
    `tokenize` beside the tokenizer itself: a lock around its call alone is not enough.
    """
    kind = type(real)
    names = [name for name in dir(kind) if not name.startswith("__")]
    methods = [name for name in names if callable(getattr(kind, name, None))]
    under_lock = {name: _under(lock, getattr(real, name)) for name in methods}
    walked = without_walks(real) if isinstance(real, torch.nn.Module) else {}
    return StandIn(real, {**under_lock, **walked, "__call__": _under(lock, real)})


def without_walks(part: torch.nn.Module) -> dict[str, Any]:
    """Return what answers quickly where pipelines walk over all layers in every call.

    They look for hooks that move layers, which are there from the beginning or not at all, and
    reset caches, which a shared network has none of (`check_shareable`).
    """
    hooked = [
        module
        for module in part.modules()
        if hasattr(module, "_hf_hook") or hasattr(module, "_diffusers_hook")
    ]
    return {"modules": lambda: iter(hooked), "_reset_stateful_cache": lambda *_, **__: None}


def _under(lock: threading.RLock, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return call


def forward_of(network: Any) -> Callable[..., Any]:
    """Return the network's call with the signature of its `forward`, which names arguments."""

    @functools.wraps(network.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    forward.__self__ = network  # type: ignore[attr-defined]
    return forward


def check_shareable(pipe: Any) -> None:
    """Refuse a pipeline whose parts cannot be shared by several calls."""
    plain_scheduler(pipe)
    name = type(pipe).__name__
    for part_name, part in pipe.components.items():
        if getattr(part, "_hf_hook", None) is not None:
            raise HostError(
                f"{name} moves its {part_name} to the device and back (offloading): a batcher "
                "needs the whole pipeline on the device, with pipe.to(device)"
            )
        if getattr(part, "is_cache_enabled", False):
            raise HostError(
                f"the {part_name} of {name} has a cache that keeps state between evaluations, "
                "which several requests would mix: call disable_cache() on it first"
            )


class AdapterSwitch:
    """Gives a pipeline the adapters of the next batch; None stands for those it had at first."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._now: Adapters | None = None
        self._first = [
            (layer, list(layer.active_adapters), dict(layer.scaling), layer.disable_adapters)
            for layer in _layers(pipe)
        ]

    def check(self, adapters: Adapters) -> None:
        """Refuse adapters where the text encoders have some: requests use these outside batches."""
        for name, part in self._pipe.components.items():
            if name.startswith("text_encoder") and getattr(part, "peft_config", None):
                raise HostError(
                    f"the {name} has adapters too, which requests cannot switch one by one: "
                    "load them for the transformer only"
                )
        known = {name for names in self._pipe.get_list_adapters().values() for name in names}
        if missing := [name for name, _ in adapters if name not in known]:
            raise HostError(f"there is no adapter {missing[0]!r}: load it with load_lora_weights")

    def use(self, adapters: Adapters | None) -> None:
        """Switch to these adapters, to none of them with (), or back with None."""
        if adapters == self._now:
            return
        if adapters is None:
            for layer, names, scaling, is_off in self._first:
                layer.scaling.update(scaling)
                layer.set_adapter(names)
                layer.enable_adapters(not is_off)
        elif not adapters:
            self._pipe.disable_lora()
        else:
            self._pipe.enable_lora()
            self._pipe.set_adapters([name for name, _ in adapters], [w for _, w in adapters])
        self._now = adapters


def _layers(pipe: Any) -> Iterator[Any]:
    """Return the layers that adapters were put into, in the manner of peft."""
    for part in pipe.components.values():
        if not hasattr(part, "modules"):
            continue
        for layer in part.modules():
            if hasattr(layer, "active_adapters") and hasattr(layer, "scaling"):
                yield layer
