"""Whether pictures show what their prompts say, in the manner of GenEval, by a small detector.

detector = load_detector()  # the one that ships, for pictures of tiny-flux
score(judge(detector, pictures, read_items("training/following.jsonl")))
"""

from tacache.lab.following.answers import (
    TAGS,
    Item,
    Relation,
    Tag,
    Wanted,
    check,
    judge,
    read_answers,
    read_items,
    relations,
    score,
)
from tacache.lab.following.detector import (
    APART,
    SIDE,
    STRIDE,
    USUAL,
    Architecture,
    Detector,
    Found,
    Maps,
    detect,
    load_detector,
    read_maps,
    save_detector,
)

__all__ = [
    "APART",
    "SIDE",
    "STRIDE",
    "TAGS",
    "USUAL",
    "Architecture",
    "Detector",
    "Found",
    "Item",
    "Maps",
    "Relation",
    "Tag",
    "Wanted",
    "check",
    "detect",
    "judge",
    "load_detector",
    "read_answers",
    "read_items",
    "read_maps",
    "relations",
    "save_detector",
    "score",
]
