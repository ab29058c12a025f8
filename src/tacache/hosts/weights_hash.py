"""The fingerprint of a network's weights, from a few elements of every tensor.

Names, shapes, dtypes and sampled elements go into one hash, together with the adapters that are
active and their scales. It is the same on every device and with or without compilation.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SAMPLED_ELEMENTS = 8  # elements of a tensor
WRAPPERS = ("_orig_mod.", "base_layer.")  # in names: what compilation and adapters put around
Named = list[tuple[str, Tensor]]


def fingerprint(networks: Mapping[str, nn.Module], beside: object = None) -> str | None:
    """Return a hash of these networks and of a JSON value; None if weights cannot be read.

    Weights that accelerate keeps away from the module (sequential offload) cannot be read.
    """
    tensors: Named = []
    for label, network in networks.items():
        tensors += [(f"{label}.{name}", tensor) for name, tensor in _tensors(network)]
    if not tensors or any(tensor.is_meta for _, tensor in tensors):
        return None
    facts = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors]
    adapters = {label: list(_adapters(network)) for label, network in networks.items()}
    digest = hashlib.sha256(json.dumps([facts, adapters, beside], sort_keys=True).encode())
    for part in _read(tensors):
        digest.update(part)
    return digest.hexdigest()


def _tensors(network: nn.Module) -> Named:
    """Return parameters and saved buffers by their names, without those of unused adapters."""
    unused = tuple(_unused(network))
    tensors: Named = [*network.named_parameters(), *_saved_buffers(network)]
    kept = (item for item in tensors if not item[0].startswith(unused))
    plain = ((_plain(name), tensor) for name, tensor in kept)
    return [(f"{name}{part}", inner) for name, tensor in plain for part, inner in _inner(tensor)]


def _saved_buffers(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in network.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name, buffer


def _inner(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Return the plain tensors that a tensor consists of, where it is quantised in some way.

    Their names say how: equal numbers may be multiplied with rounded activations or with exact.
    """
    if not hasattr(tensor, "__tensor_flatten__"):
        yield "", tensor.detach().as_subclass(Tensor)
        return
    names, options = tensor.__tensor_flatten__()
    for name in names:
        for part, inner in _inner(getattr(tensor, name)):
            yield f"{_way(options)}.{name}{part}", inner


def _way(options: object) -> str:
    """Return the options of a quantised tensor as a text that is the same on every device."""
    if not isinstance(options, Mapping):
        return ""
    told = {name: option for name, option in options.items() if name != "device"}
    return re.sub(r" at 0x[0-9a-f]+", "", f"({told})")


def _read(tensors: Named) -> Iterator[bytes]:
    """Return the sampled elements of each tensor, as bytes, read from a device once a dtype."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, (_, tensor) in enumerate(tensors):
        groups[tensor.device, tensor.dtype].append(i)
    parts: dict[int, bytes] = {}
    for places in groups.values():
        samples = [_sampled(tensors[i][1]) for i in places]
        joined = torch.cat(samples).cpu().contiguous().view(torch.uint8).numpy()
        ends = np.cumsum([len(sample) * sample.element_size() for sample in samples])
        for i, part in zip(places, np.split(joined, ends[:-1]), strict=True):
            parts[i] = part.tobytes()
    yield from (parts[i] for i in range(len(tensors)))


def _sampled(tensor: Tensor) -> Tensor:
    """Return a few elements at even distances, as a view where the tensor lies in one piece."""
    count, distance = tensor.numel(), max(1, tensor.numel() // SAMPLED_ELEMENTS)
    if tensor.is_contiguous():
        return tensor.view(-1)[::distance][:SAMPLED_ELEMENTS]
    wanted = np.arange(0, count, distance)[:SAMPLED_ELEMENTS]
    return tensor[tuple(torch.from_numpy(i) for i in np.unravel_index(wanted, tensor.shape))]


def _layers(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Return the layers that adapters were put into, in the manner of peft."""
    for name, module in network.named_modules():
        if hasattr(module, "adapter_layer_names") and hasattr(module, "active_adapters"):
            yield name, module


def _active(layer: Any) -> list[str]:
    off = getattr(layer, "disable_adapters", False) and not getattr(layer, "merged_adapters", ())
    return [] if off else list(layer.active_adapters)


def _adapters(network: nn.Module) -> Iterator[list[Any]]:
    """Return the adapters that a network uses, layer by layer, with their scales."""
    for name, layer in _layers(network):
        scales = getattr(layer, "scaling", {})
        active = [
            [adapter, float(scales.get(adapter, 1.0))]
            for adapter in _active(layer)
            if adapter in scales
        ]
        if active:
            yield [_plain(name), active, sorted(getattr(layer, "merged_adapters", ()))]


def _unused(network: nn.Module) -> Iterator[str]:
    """Return the beginnings of the names of weights that no active adapter has."""
    for name, layer in _layers(network):
        for kind in layer.adapter_layer_names:
            for adapter in getattr(layer, kind, {}) or {}:
                if adapter not in _active(layer):
                    yield f"{name}.{kind}.{adapter}."


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
