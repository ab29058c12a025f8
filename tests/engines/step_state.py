"""The state that vLLM-Omni keeps of a request in its step mode.

`VLLM_OMNI_PATH` names a folder with its package, as its wheel unpacks; `make engines` sets it. Then
`StepRequestState` is the real class, of `vllm_omni/diffusion/worker/utils.py`, which needs nothing
but torch. Otherwise it is a stand-in with what a scheduler meets, read from version 0.30.0.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

PATH = os.environ.get("VLLM_OMNI_PATH")
REAL = "vllm_omni/diffusion/worker/utils.py"


@dataclass
class StandIn:
    """A request counts its steps itself and ends at the length of its timesteps."""

    request_id: str
    sampling: Any
    latents: Any = None
    timesteps: Any = None
    step_index: int = 0
    scheduler: Any = None

    @property
    def current_timestep(self) -> Tensor | None:
        """The timestep of the evaluation to come."""
        return None if self.denoise_completed else self.timesteps[self.step_index]

    @property
    def total_steps(self) -> int:
        """How many evaluations there are."""
        return 0 if self.timesteps is None else len(self.timesteps)

    @property
    def denoise_completed(self) -> bool:
        """Whether all are made."""
        return 0 < self.total_steps <= self.step_index


def _real(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("vllm_omni_step_state", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module.StepRequestState


StepRequestState: Any = _real(Path(PATH) / REAL) if PATH else StandIn
