"""The model on Ray Serve: replicas over GPUs and machines, behind one HTTP application."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError

from tacache.errors import HostError, first_line
from tacache.serving.cluster import join
from tacache.serving.model_source import ModelSource
from tacache.serving.protocol import Refused, RequestBody
from tacache.serving.scaling import QUEUED, ByEvaluations
from tacache.serving.worker import Event

logger = logging.getLogger("tacache.serving")
NAME = "tacache"
MAX_TRIES = 4  # of a request whose replica dies
MAX_REQUESTS = 10_000  # that a replica takes on: its own limit is in evaluations
ANSWERS_S = 5.0  # how long replicas are waited for that are asked for their numbers
DEAD = (RayActorError, WorkerCrashedError, ReplicaUnavailableError)


class Scale(NamedTuple):
    """How many replicas there are: a fixed number, or between two."""

    least: int
    most: int

    @classmethod
    def of(cls, text: str) -> "Scale":
        """Read such as 2 or 1:8."""
        least, _, most = text.partition(":")
        try:
            scale = cls(int(least), int(most or least))
        except ValueError:
            scale = cls(0, 0)
        if not 1 <= scale.least <= scale.most:
            raise HostError(f"replicas are a number such as 2, or a range as 1:8, not {text!r}")
        return scale


class Pace(NamedTuple):
    """When the number of replicas changes, where it may."""

    target: float = 25.0  # evaluations a row of a batch, beyond which more replicas are wanted
    up_s: float = 5.0  # how long more are wanted before they are started
    down_s: float = 120.0  # how long fewer are wanted before some end
    average_s: float = 10.0  # the time over which what waits is averaged
    report_s: float = 2.0  # between two reports of a replica


class Replica:
    """One copy of the model in a process of its own."""

    def __init__(self, source: ModelSource) -> None:
        self.worker = source.worker()
        self.name = serve.get_replica_context().replica_id.unique_id

    async def run(self, wanted: RequestBody) -> AsyncGenerator[Event, None]:
        """Return the events of a request."""
        async with contextlib.aclosing(self.worker.run(wanted)) as events:
            async for event in events:
                yield event

    async def numbers(self) -> tuple[str, dict[str, float]]:
        """Return the name of this replica, and what it has counted so far."""
        return self.name, self.worker.snapshot()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the number of replicas is decided by."""
        return {QUEUED: float(self.worker.batcher.evaluations_queued)}

    def check_health(self) -> None:
        """Raise where the thread that makes batches is gone, so that Ray starts another replica."""
        if not self.worker.batcher.is_alive:
            raise HostError("the thread that evaluates the model has ended")


def deployment(source: ModelSource, scale: Scale, gpus: float, pace: Pace | None = None) -> Any:
    """Return the application of Ray Serve that runs a model, for `serve.run`."""
    options: dict[str, Any] = {"num_replicas": scale.least}
    if scale.most > scale.least:
        options = {"autoscaling_config": _autoscaling(scale, pace or Pace(), source.max_rows)}
    replicas = serve.deployment(
        Replica,
        name="Replica",
        max_ongoing_requests=MAX_REQUESTS,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
        health_check_period_s=5.0,
        health_check_timeout_s=60.0,
        graceful_shutdown_timeout_s=source.drain_s,
        **options,
    )
    return replicas.bind(source)


def _autoscaling(scale: Scale, pace: Pace, max_rows: int) -> dict[str, Any]:
    """Return what Ray is told about a number of replicas that changes."""
    policy = {"policy_function": ByEvaluations, "policy_kwargs": {"target": pace.target * max_rows}}
    return {
        "min_replicas": scale.least,
        "max_replicas": scale.most,
        "upscale_delay_s": pace.up_s,
        "downscale_delay_s": pace.down_s,
        "look_back_period_s": pace.average_s,
        # deprecated, but Ray 2.60 does not read the variables yet that are to replace it
        "metrics_interval_s": pace.report_s,
        "policy": policy,
    }


class RayBackend:
    """Replicas on Ray; a request whose replica dies is made again by another one."""

    def __init__(self, handle: Any, *, is_ours: bool = True) -> None:
        self._handle = handle.options(stream=True, method_name="run")
        self._is_ours = is_ours  # the cluster, which then ends with the server
        self._retried = 0

    @classmethod
    def start(
        cls,
        source: ModelSource,
        *,
        replicas: str | None = None,
        gpus: float | None = None,
        address: str | None = None,
        dashboard: bool = False,
        pace: Pace | None = None,
    ) -> "RayBackend":
        """Start Ray, or join a cluster, and wait until the replicas have loaded the model.

        `pace` says when replicas come and go, where `replicas` is a range.
        """
        scale = None if replicas is None else Scale.of(replicas)
        is_ours = join(address, dashboard=dashboard)
        there = int(ray.cluster_resources().get("GPU", 0))
        scale = scale or Scale(max(1, there), max(1, there))
        each = gpus if gpus is not None else (1.0 if there else 0.0)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled")
        try:
            handle = serve.run(deployment(source, scale, each, pace), name=NAME, route_prefix=None)
        except RuntimeError as error:
            raise HostError(f"Ray could not start the model: {first_line(error)}") from error
        return cls(handle, is_ours=is_ours)

    async def run(self, wanted: RequestBody) -> AsyncGenerator[Event, None]:
        """Yield the events of a replica; after its death, those of another from the beginning."""
        for attempt in range(MAX_TRIES):
            response = self._handle.remote(wanted)
            try:
                async for event in response:
                    yield event
                return
            except DEAD:
                self._retried += 1
                logger.warning("a replica died; its request is made again (%d)", attempt + 1)
            except (RayError, DeploymentUnavailableError) as error:
                raise _refusal(error) from error
            finally:
                response.cancel()
        raise Refused(f"{MAX_TRIES} replicas died on this request", status=500)

    async def check(self) -> None:
        """Raise unless a replica is there."""
        status = await asyncio.to_thread(serve.status)
        application = status.applications.get(NAME)
        if application is None or application.status not in ("RUNNING", "DEPLOYING", "UNHEALTHY"):
            raise HostError("the application is not running")
        states = [
            deployed.replica_states.get("RUNNING", 0)
            for deployed in application.deployments.values()
        ]
        if not sum(states):
            raise HostError("no replica is running")

    async def snapshots(self) -> Mapping[str, Mapping[str, float]]:
        """Return the numbers of each replica that answers, and of this process."""
        asked, told = self._handle.broadcast("numbers"), list[Any]()
        try:
            told = await asked.results_async(timeout_s=ANSWERS_S, return_exceptions=True)
        except (RayError, DeploymentUnavailableError, TimeoutError) as error:
            logger.warning("replicas did not tell their numbers: %s", first_line(error))
        there = dict(answer for answer in told if not isinstance(answer, BaseException))
        return {**there, "front": {"requests_retried": self._retried}}

    async def close(self) -> None:
        """End the replicas, after what they were given to do."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the application, and Ray where it was started for it."""
        if self._is_ours:
            serve.shutdown()
            ray.shutdown()
        else:
            serve.delete(NAME)


def _refusal(error: Exception) -> Refused:
    """Return what a replica said, or that it could not."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, Refused):
        return cause
    logger.error("a replica failed", exc_info=error)
    return Refused("the request failed: the server's log says why", status=500)
