"""PSNR in words: what people see at so many dB, and the scale that the page draws of it."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

LOWEST, HIGHEST = 20.0, 45.0  # dB at the ends of the scale


class Zone(NamedTuple):
    """What is seen from so many dB on, and the name of these PSNR."""

    least: float
    name: str
    words: str


ZONES = (
    Zone(-math.inf, "below 25", "another picture"),
    Zone(25.0, "25 to 30", "parts of it differ"),
    Zone(30.0, "30 to 35", "details differ"),
    Zone(35.0, "35 to 40", "hardly anybody sees a difference"),
    Zone(40.0, "40 and more", "no difference to see"),
)


class Mark(NamedTuple):
    """A PSNR on the scale with its name; one that is not the mean is hollow."""

    name: str
    psnr: float
    hollow: bool = False


def in_words(psnr: float) -> str:
    """Return what people see at a PSNR."""
    return next(zone.words for zone in reversed(ZONES) if psnr >= zone.least)


def psnr_scale(marks: Sequence[Mark] = (), *, explained: bool = True) -> str:
    """Return the scale as HTML, with marks on it, and below it what its marks and parts mean.

    Without `explained` the parts are left out: something nearby explains them.
    """
    arrows = "".join(
        f'<b class="{_kind(mark)}" style="left:{100 * _share(mark.psnr):.1f}%"></b>'
        for mark in marks
    )
    parts = "".join(f'<i class="zone-{n}"></i>' for n in range(len(ZONES)))
    entries = [(_kind(mark), f"{mark.name} {mark.psnr:.1f} dB") for mark in marks]
    zones = ZONES if explained else ()
    entries += [(f"zone-{n}", f"{zone.name}: {zone.words}") for n, zone in enumerate(zones)]
    label = "; ".join(f"{mark.name} {mark.psnr:.1f} dB: {in_words(mark.psnr)}" for mark in marks)
    return (
        '<figure class="psnr"><figcaption>PSNR to the full run, in dB</figcaption>'
        f'<div class="zones" role="img" aria-label="{escape(label or "PSNR in words")}">{arrows}'
        f"{parts}</div>{legend(entries)}</figure>"
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend as HTML: a swatch of each kind, and what it stands for."""
    items = "".join(
        f'<span><i class="swatch {kind}"></i>{escape(words)}</span>' for kind, words in entries
    )
    return f'<p class="legend">{items}</p>'


def _kind(mark: Mark) -> str:
    return "pin hollow" if mark.hollow else "pin"


def _share(psnr: float) -> float:
    """Return where a PSNR lies from the left end of the scale to its right one."""
    return min(max((psnr - LOWEST) / (HIGHEST - LOWEST), 0.0), 1.0)
