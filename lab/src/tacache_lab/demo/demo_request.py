"""What a demo compares: its prompts, with the pipeline's arguments and a seed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

# What the embedded model draws: other words, a count, a colour, and two objects in their places.
PROMPTS = (
    "a puppy on a green background",
    "three penguins on a blue background",
    "a blue car",
    "a hamburger above a guitar",
)
# What it is calibrated on when that is asked for: none of the above.
CALIBRATION = (
    "a cat",
    "two strawberries on a blue background",
    "a purple umbrella",
    "an owl below a crescent moon",
)
# The same for the embedded model that makes clips: a way, a speed, a turn, and two objects.
VIDEO_PROMPTS = (
    "a cat moves to the left",
    "a rocket rises quickly on a black background",
    "a pizza spins clockwise",
    "a tiger moves right and a penguin moves left",
)
VIDEO_CALIBRATION = (
    "a dog moves to the right fast",
    "a blue balloon rising on a yellow background",
    "a heart shrinks",
    "a bear and a banana cross",
)


class DemoRequest(NamedTuple):
    """What to compare: prompts, with the pipeline's arguments and a seed.

    `plain` are numbers of plain steps that are drawn too. Where a demo has several parts, `part`
    is the folder of this one's files within the demo's.
    """

    prompts: Sequence[str]
    call: dict[str, Any]
    seed: int = 0
    calibration: Sequence[str] = CALIBRATION
    fps: int | None = None  # where the pipeline makes clips
    plain: Sequence[int] = ()
    part: str = ""
