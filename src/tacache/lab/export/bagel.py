"""The name under which the command line finds BAGEL as what draws."""

from tacache.bagel.inferencer import BagelHost as BagelStudio

__all__ = ["BagelStudio"]
