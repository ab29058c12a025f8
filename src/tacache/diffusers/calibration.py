"""The name under which the command line finds calibration on a pipeline."""

from tacache.diffusers.pipeline import calibrate

__all__ = ["calibrate"]
