"""How near to the flow in Euler steps: the number of them that end as far from it."""

from collections.abc import Mapping

from tacache.fitting.flow import equivalent_steps
from tacache.plan import near_as
from tacache_lab.report.confidence import Estimate
from tacache_lab.report.summary import Row, Table

EQUIVALENT = "fine.equivalent-steps"
DISTANCE = "fine.drift"  # the mean over samples of the relative distance of latents

Key = tuple[str, int | None]


def with_equivalents(rows: Mapping[Key, Row], steps: int, samples: int) -> dict[Key, Row]:
    """Return the rows with their equivalent steps, where Euler runs of all samples tell them."""
    measured = euler_distances(rows, steps, samples)
    return {key: _with(row, measured) for key, row in rows.items()} if measured else dict(rows)


def euler_distances(rows: Mapping[Key, Row], steps: int, samples: int) -> dict[int, float]:
    """Return the mean distance to the flow by the number of Euler steps, of all that were run."""
    by_steps: dict[int, float] = {}
    for row in rows.values():
        count, distance = _euler_steps(row, steps), row.values.get(DISTANCE)
        whole = row.done == samples and distance is not None and distance.mean > 0
        if count is not None and distance is not None and whole:
            by_steps[count] = distance.mean
    return by_steps


def nearness(table: Table) -> list[str]:
    """Return the sentence of the method of a budget that comes nearest to the flow."""
    known = [row for row in table.rows if EQUIVALENT in row.values and row.ranks]
    if table.evaluations is None or not known:
        return []
    best = max(known, key=lambda row: row.values[EQUIVALENT].mean)
    return [f"{best.method}: {near_as(table.evaluations, best.values[EQUIVALENT].mean)}"]


def _euler_steps(row: Row, steps: int) -> int | None:
    """Return how many Euler steps a row is of, where it is of any."""
    name, _, number = row.method.partition(":")
    if name == "euler" and number.isdigit():
        return int(number)
    return {"full": steps, "fewer": row.evaluations}.get(row.method)


def _with(row: Row, measured: Mapping[int, float]) -> Row:
    distance = row.values.get(DISTANCE)
    if distance is None or distance.mean <= 0:
        return row
    steps = Estimate(
        mean=equivalent_steps(distance.mean, measured), margin=None, samples=distance.samples
    )
    return row.model_copy(update={"values": {**row.values, EQUIVALENT: steps}})
