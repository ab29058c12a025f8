"""The transformers that caches can be put into: their blocks, and how those are called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diffusers import FluxTransformer2DModel, WanTransformer3DModel
from torch import Tensor

from tacache.errors import HostError

PIPELINES = "FluxPipeline and WanPipeline"


@dataclass(frozen=True)
class Family:
    """One kind of transformer.

    A block gets the picture or clip, and the text; what it returns holds the former, and in FLUX
    the text as well.
    """

    name: str
    kind: type
    lists: tuple[str, ...]  # of its blocks, in the order they run
    attention: str  # of a block to itself
    attentions: tuple[str, ...] | None  # patterns of all, where diffusers does not know them
    entering: Callable[[tuple[Any, ...], dict[str, Any]], Tensor]  # the picture a block gets
    passing: Callable[[tuple[Any, ...], dict[str, Any]], Any]  # what a block that is idle returns
    leaving: Callable[[Any], Tensor]  # the picture in what a block returns
    replacing: Callable[[Any, Tensor], Any]  # the same with another picture


FLUX = Family(
    "flux",
    FluxTransformer2DModel,
    ("transformer_blocks", "single_transformer_blocks"),
    "attn",
    None,
    entering=lambda args, named: named["hidden_states"],
    passing=lambda args, named: (named["encoder_hidden_states"], named["hidden_states"]),
    leaving=lambda output: output[1],
    replacing=lambda output, picture: (output[0], picture),
)
WAN = Family(
    "wan",
    WanTransformer3DModel,
    ("blocks",),
    "attn1",
    (r"blocks\.\d+\.attn\d",),
    entering=lambda args, named: args[0],
    passing=lambda args, named: args[0],
    leaving=lambda output: output,
    replacing=lambda output, clip: clip,
)
FAMILIES = {family.name: family for family in (FLUX, WAN)}


def family_of(transformer: Any) -> Family:
    """Return the family of a transformer; HostError where it has none."""
    for family in FAMILIES.values():
        if isinstance(transformer, family.kind):
            return family
    raise HostError(
        f"no cache can be put into {type(transformer).__name__}: caches inside the model run on "
        f"{PIPELINES}"
    )


def blocks_of(transformer: Any) -> list[Any]:
    """Return the blocks of a transformer, in the order they run."""
    lists = family_of(transformer).lists
    return [block for name in lists for block in getattr(transformer, name)]


def attention_of(transformer: Any, block: Any) -> Any:
    """Return the attention of a block to itself."""
    return getattr(block, family_of(transformer).attention)
