"""Whether pictures show what their prompts say, in the manner of GenEval, by a small detector.

detector = load_detector()  # the one that ships, for pictures of tiny-flux
score(judge(detector, pictures, read_items("training/following.jsonl")))
"""

from tacache_lab.following.answers import (
    TAGS,
    ExpectedObject,
    Item,
    Relation,
    Tag,
    check,
    judge,
    read_answers,
    read_items,
    relations,
    score,
)
from tacache_lab.following.detector import (
    APART,
    DEFAULT_SIZE,
    SIDE,
    STRIDE,
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
    "DEFAULT_SIZE",
    "SIDE",
    "STRIDE",
    "TAGS",
    "Architecture",
    "Detector",
    "ExpectedObject",
    "Found",
    "Item",
    "Maps",
    "Relation",
    "Tag",
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
