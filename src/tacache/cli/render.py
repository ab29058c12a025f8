"""Profiles and plans as text for the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tacache.errors import counted, printable
from tacache.plan import Certificate, LatentPlan, Plan
from tacache.profile import Profile
from tacache.storage.frontier import Frontier

# A braille cell holds four dots above each other: one column a step, four levels a row.
DOTS = "⠁⠂⠄⡀"
ANCHOR, SKIP = "█", "·"
ROWS, COLUMNS = 6, 64


def curve(values: Sequence[float], title: str) -> Text:
    """Draw values as dots, one for each step, with the largest and the smallest on the left.

    Where there are more steps than columns, a dot stands for the mean of neighbouring steps.
    """
    group = -(-len(values) // COLUMNS)
    values = [_mean(values[i : i + group]) for i in range(0, len(values), group)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    levels = len(DOTS) * ROWS - 1
    heights = [round((high - value) / span * levels) for value in values]
    text = Text(f"{title}\n", style="bold")
    for row in range(ROWS):
        label = {0: f"{high:10.4g} ", ROWS - 1: f"{low:10.4g} "}.get(row, " " * 11)
        cells = (
            DOTS[height % len(DOTS)] if height // len(DOTS) == row else " " for height in heights
        )
        text.append(f"{label}┤{''.join(cells)}\n", style="not bold")
    return text


def strip(plan: Plan) -> str:
    """Return a run step by step: a block where the model is evaluated, a dot where it is not."""
    return "".join(ANCHOR if n in plan.anchors else SKIP for n in range(plan.steps))


def profile_view(profile: Profile) -> RenderableType:
    """Show what was measured: its source and both indicators."""
    return Group(
        _facts(
            ("profile of", _host(profile)),
            ("steps", f"{profile.steps}, t from {profile.times[0]:g} to {profile.times[-1]:g}"),
            ("samples", str(profile.samples)),
            (
                "spread",
                f"magnitude ±{_mean(profile.magnitude_std):.3g}, "
                f"direction ±{_mean(profile.direction_std):.3g} (mean over steps)",
            ),
        ),
        curve(profile.magnitude, "magnitude (MI, k per unit time)"),
        curve(profile.direction, "direction (DI, d per step)"),
    )


def plan_view(plan: Plan) -> RenderableType:
    """Show what is decided: the budget, the thresholds, and the strip of anchors and skips."""
    facts = [
        ("plan for", _host(plan)),
        ("rule", plan.rule),
        ("evaluations", plan.budget),
        ("predicted speedup", f"{plan.speedup:.2f}x (steps per evaluation)"),
    ]
    if plan.tau_k is not None and plan.tau_d is not None:
        limits = f"tau_k {plan.tau_k:.4g}, tau_d {plan.tau_d:.4g}, max_skip {plan.max_skip}"
        facts.append(("thresholds", limits))
    if plan.certificate is not None:
        facts += _certificate(plan.certificate, plan.evaluations)
    facts += [(f"latent {name}", _latent(latent)) for name, latent in (plan.latents or {}).items()]
    parts: list[RenderableType] = [
        _facts(*facts),
        Text(f"\n{strip(plan)}", style="cyan"),
        Text(f"{ANCHOR} evaluated   {SKIP} reconstructed", style="dim"),
        Text("intervals " + " ".join(map(str, plan.intervals)) + "\n"),
    ]
    if plan.magnitude is not None:
        parts.append(curve(plan.magnitude, "magnitude (MI, k per unit time)"))
    if plan.direction is not None:
        parts.append(curve(plan.direction, "direction (DI, d per step)"))
    return Group(*parts)


def frontier_view(frontier: Frontier) -> RenderableType:
    """Show what each budget reaches on the samples held out from its fit."""
    table = Table("evaluations", "speedup", "PSNR, dB", "drift", "plan", box=None)
    for point in frontier.points:
        fidelity = "-" if point.psnr is None else f"{point.psnr:.2f}"
        row = (f"{point.speedup:.2f}x", fidelity, f"{point.drift:.4f}", Text(printable(point.plan)))
        table.add_row(str(point.evaluations), *row)
    return table


def _certificate(certificate: Certificate, evaluations: int) -> list[tuple[str, str]]:
    psnr = "" if certificate.psnr is None else f"PSNR {certificate.psnr:.2f} dB, "
    psnr += "" if certificate.p5_psnr is None else f"5th percentile {certificate.p5_psnr:.2f} dB, "
    nearness = certificate.nearness(evaluations)
    held_out = counted(certificate.held_out, "held-out sample")
    return [
        ("measured", f"{psnr}drift {certificate.drift:.4f} on {held_out}"),
        *([] if nearness is None else [("to the flow", nearness)]),
        ("fitted samples", f"drift {certificate.fit_drift:.4f}"),
        ("spent", f"{certificate.evaluations_spent} evaluations, {certificate.date}"),
    ]


def _latent(latent: LatentPlan) -> str:
    """Return what a further latent has of its own, and what it was measured to end with."""
    own = f"t from {latent.times[0]:g} to {latent.times[-1]:g}, second {latent.times[1]:.4g}"
    certificate = latent.certificate
    if certificate is None:
        return own
    sound = (
        ""
        if certificate.spectral_distance is None
        else (f"spectral distance {certificate.spectral_distance:.2f} dB, ")
    )
    return f"{own}; {sound}drift {certificate.drift:.4f}"


def _facts(*rows: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(printable(value)))  # names of models are no markup
    return table


def _host(source: Profile | Plan) -> str:
    origin = source.origin
    names = [part for part in (origin.model, origin.pipeline, origin.scheduler) if part]
    shape = "x".join(map(str, origin.latent_shape)) if origin.latent_shape is not None else ""
    what = " / ".join(names) or "a velocity function"
    return what + (f", latents of {shape} {origin.dtype or ''}".rstrip() if shape else "")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
