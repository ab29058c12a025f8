"""The name under which the command line finds a pipeline as what draws."""

from tacache.diffusers.pipeline import PipelineHost as PipelineStudio

__all__ = ["PipelineStudio"]
