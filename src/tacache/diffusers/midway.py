"""Timesteps of a run that its pipeline will start midway, by a strength of the call.

Pipelines cut the timesteps at the step where they start, counted in those they see. They see all
of them here, and where they cut, they get the anchors from there on.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class CutTimesteps(Tensor):
    """The full timesteps; `timesteps[start:]` is what `begin` gives instead."""

    # operations give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    start: int
    begin: Callable[[], Tensor]

    @staticmethod
    def of(timesteps: Tensor, start: int, begin: Callable[[], Tensor]) -> "CutTimesteps":
        """`timesteps` for a pipeline that will cut them at `start`."""
        view = timesteps.as_subclass(CutTimesteps)
        view.start, view.begin = start, begin
        return view

    @property
    def plain(self) -> Tensor:
        """The same as a tensor like any other."""
        return self.as_subclass(Tensor)

    def __getitem__(self, index: Any) -> Tensor:
        at_start = isinstance(index, slice) and index == slice(self.start, None, None)
        return self.begin() if at_start else self.plain[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.plain.clone()
