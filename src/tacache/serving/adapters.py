"""The LoRA adapters of a shared model, switched between batches and put back as they were."""

from collections.abc import Iterator
from typing import Any

from tacache.errors import HostError

Adapters = tuple[tuple[str, float], ...]  # names and weights


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
