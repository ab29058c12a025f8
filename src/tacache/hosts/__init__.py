"""What a host offers, and calibrate, fit and generate written once on top of it.

A host runs a model: a pipeline of diffusers, BAGEL, or anything that fills in `Host`. Each verb
here takes a host of any kind. The packages of the hosts offer the same verbs for their own models.
"""

from tacache.hosts.base import Call, Host, Pixels, Trajectory
from tacache.hosts.generation import Output, Request, file_stem, generate, warm_up, write
from tacache.hosts.held_runs import fit_plans, kept_by
from tacache.hosts.measuring import calibrate

__all__ = [
    "Call",
    "Host",
    "Output",
    "Pixels",
    "Request",
    "Trajectory",
    "calibrate",
    "file_stem",
    "fit_plans",
    "generate",
    "kept_by",
    "warm_up",
    "write",
]
