"""Drawings of profiles by matplotlib, in the manner of the paper's figure 2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacache.errors import TACacheError
from tacache.profile import Profile
from tacache.storage.atomic import writing

FORMATS = (".svg", ".png", ".pdf")


def plot_profile(profile: Profile, path: str | Path) -> Path:
    """DI, MI and MI of the middle steps over the run, with one standard deviation to either side.

    The last step has no measurement of its own and is left out.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise TACacheError(f"cannot draw {target}: name it with one of {', '.join(FORMATS)}")
    figure_class, style = _matplotlib()
    steps = range(profile.steps - 1)
    middle = middle_steps(profile)
    with style({"svg.hashsalt": "tacache", "font.size": 9}):  # the same file every time
        figure = figure_class(figsize=(10, 2.9), layout="constrained")
        panels = figure.subplots(1, 3)
        name = profile.host.model or "the host"
        _curve(panels[0], steps, profile.direction, profile.direction_std, f"DI of {name}", "C0")
        for panel, shown, title in (
            (panels[1], steps, f"MI of {name}"),
            (panels[2], middle, f"MI, steps {middle[0]} to {middle[-1]}"),
        ):
            _curve(panel, shown, profile.magnitude, profile.magnitude_std, title, "C1")
        figure.suptitle(f"mean and standard deviation over {profile.samples} runs", fontsize=9)
        metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
        with writing(target) as draft:
            figure.savefig(draft, metadata=metadata, dpi=150)
    return target


def middle_steps(profile: Profile) -> range:
    """The steps without the first and last fifth, which set the scale of MI."""
    edge = max(1, profile.steps // 5)
    return range(edge, max(edge + 1, profile.steps - 1 - edge))


def _curve(
    panel: Any,
    steps: range,
    mean: Sequence[float],
    spread: Sequence[float],
    title: str,
    colour: str,
) -> None:
    low = [mean[n] - spread[n] for n in steps]
    high = [mean[n] + spread[n] for n in steps]
    panel.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    panel.plot(steps, [mean[n] for n in steps], color=colour, linewidth=1.5)
    panel.set_title(title, fontsize=10)
    panel.set_xlabel("step, from noise to data")
    panel.set_ylabel("per unit of time" if title.startswith("MI") else "per step")
    panel.grid(alpha=0.3)


def _matplotlib() -> tuple[Any, Any]:
    """The class of figures that need no screen, and a way to set options for a while."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise TACacheError("drawing needs matplotlib: pip install 'tacache[plots]'") from error
    return Figure, rc_context
