"""How many replicas there should be: by the evaluations that wait, not by requests.

Ray copies this module into its controller, so it imports nothing of the package.
"""

import math
from typing import Any

QUEUED = "evaluations_queued"  # what replicas report under this name


class ByEvaluations:
    """A policy of Ray Serve: so many replicas that each has about `target` evaluations to make."""

    def __init__(self, target: float) -> None:
        self.target = target

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas wanted, before Ray applies its bounds and delays."""
        reported = (context.aggregated_metrics or {}).get(QUEUED, {})
        wanted = math.ceil(sum(reported.values()) / self.target)
        return max(1, wanted), {}
