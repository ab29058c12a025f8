"""Many requests on one model: continuous batching of calls that follow plans."""

from tacache.serving.asks import Cancelled
from tacache.serving.batcher import Batcher
from tacache.serving.request import Request

__all__ = ["Batcher", "Cancelled", "Request"]
