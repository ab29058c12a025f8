"""Many requests on one model: continuous batching of calls that follow plans."""

from tacache.serving.batcher import Batcher
from tacache.serving.request import Cancelled, GenerationRequest

__all__ = ["Batcher", "Cancelled", "GenerationRequest"]
