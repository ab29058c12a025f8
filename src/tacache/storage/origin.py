"""Where the numbers of a file come from: what ran the model, and how."""

import logging

from pydantic import JsonValue

from tacache.errors import printable
from tacache.storage.files import Frozen


class Origin(Frozen):
    """An origin says what ran the model, and how. A field that is not set is not known.

    `weights` is a fingerprint of the network's weights with its adapters, and `negative` says
    whether the call had a negative prompt.
    """

    kind: str = "function"
    pipeline: str | None = None
    model: str | None = None
    denoiser: str | None = None
    scheduler: str | None = None
    scheduler_config: dict[str, JsonValue] | None = None
    latent_shape: tuple[int, ...] | None = None
    dtype: str | None = None
    call: dict[str, JsonValue] | None = None
    prompts_sha256: str | None = None
    weights: str | None = None
    negative: bool | None = None

    def warn_of_model(self, model: str | None, log: logging.Logger) -> None:
        """Say where a plan is used on another model than it was made for, as on a fine-tune."""
        if self.model is not None and model is not None and self.model != model:
            log.warning(
                "the plan was made for %s, this is %s: fine for a fine-tune, else calibrate it",
                printable(self.model), model,
            )  # fmt: skip
