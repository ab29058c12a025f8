"""Many requests on one model: continuous batching of calls that follow plans."""

from tacache.serving.batcher import Batcher
from tacache.serving.request import Request
from tacache.serving.waves import Cancelled

__all__ = ["Batcher", "Cancelled", "Request"]
