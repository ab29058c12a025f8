"""What the server has counted, as text that Prometheus reads."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST
COUNTERS = {
    "batches": "Batches of evaluations that were made.",
    "rows": "Rows of all batches.",
    "evaluations": "Evaluations that requests were given.",
    "requests_done": "Requests that were answered.",
    "requests_failed": "Requests whose call failed.",
    "requests_refused": "Requests that were not taken on.",
    "requests_cancelled": "Requests that were cancelled, or whose client went away.",
    "requests_retried": "Requests that were tried again because their replica died.",
}
GAUGES = {
    "evaluations_queued": "Evaluations that the requests taken on still need.",
    "requests_running": "Requests that run or wait.",
    "finish_time_error": "Median relative error of the latest estimates of finish times.",
}


class _Snapshots(Collector):
    def __init__(self, snapshots: Mapping[str, Mapping[str, float]]) -> None:
        self.snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """Return every number of every replica."""
        kinds = ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES))
        for kind, names in kinds:
            for name, meaning in names.items():
                metric = kind(f"tacache_{name}", meaning, labels=["replica"])
                for replica, numbers in self.snapshots.items():
                    if name in numbers:
                        metric.add_metric([replica], numbers[name])
                yield metric


def metrics_text(snapshots: Mapping[str, Mapping[str, float]]) -> bytes:
    """Return the numbers of all replicas, by their names, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshots(snapshots))
    return generate_latest(registry)
