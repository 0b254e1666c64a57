"""The status that each worker reports with every heartbeat. `imagefleet fleet` shows it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field, ValidationError

from imagefleet.shared.jobs.model import Count, Measured, Model, Time
from imagefleet.shared.jobs.redis_keys import drain_requests_key, leases_key, workers_key
from imagefleet.shared.redis_client.wrong_type_keys import (
    read_ignoring_wrong_types,
    read_key,
)

if TYPE_CHECKING:
    from redis import Redis


class WorkerState(StrEnum):
    """A worker is in one of these states."""

    JOINING = "joining"  # it compares itself with the fleet, and takes no work yet
    READY = "ready"  # it claims work
    QUARANTINED = "quarantined"  # devices or store failed; it checks them until they are healthy
    DRAINING = "draining"  # it finishes what it has and ends
    LOST = "lost"  # its lease expired; a worker requeues what it held
    UNKNOWN = "unknown"  # it holds a lease and says nothing: release 0.1.0, or a damaged entry


class Trait(StrEnum):
    """The hosts of a fleet must have these in common, unless `may_differ` names them."""

    MODEL = "model"  # of the jobs that name none
    DIGEST = "digest"  # of a model of this name
    STORE = "store"  # where the images go
    SHAPES = "shapes"  # of a model of this name: the first, which jobs without a size have


class Member(Model):
    """What a worker says of itself for the comparison with the other hosts of its fleet. Its model
    and shapes stand in its status."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # newer workers may say more

    serves_default: bool
    """Whether it makes the jobs that name no model."""
    digest: str = ""
    """It is that of the model. '': it is not known, and so not compared."""
    store: str = ""
    """It is the address of its store without credentials. '': it is not compared."""
    may_differ: tuple[str, ...] = ()
    """Those of `Trait` in which this worker and others may differ."""


class WorkerStatus(Model):
    """What a worker reported of itself at its latest heartbeat. Rates are of the last minute."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # newer workers may say more

    worker: str
    """The name has host, process id and a random part. Results, claims and leases name the worker
    so."""
    state: WorkerState
    version: str = ""
    model: str = ""
    shapes: tuple[str, ...] = ()
    """The default shape is the first."""
    shard_formats: tuple[str, ...] | None = None
    """It lists the formats of datasets that the worker can write. None: a worker of an older
    release, which does not say it."""
    image_formats: tuple[str, ...] | None = None
    """It lists the formats of image files in the same way."""
    member: Member | None = None
    """None: a worker of an older release, which does not say it."""
    devices: str = ""
    """It says their number and kind, as in `8 x TPU v5 lite`."""
    capacity: Count = 0
    """It counts the images of a full batch."""
    claims: Count = 0
    """Messages that it has claimed and not acknowledged. `FleetReader` counts them anew."""
    shards: Count = 0
    """Those of them that are shards of datasets."""
    images: Count = 0
    """It counts the images since the start."""
    images_per_s: Measured = 0.0
    batch_fill: Measured | None = None
    """Share of the slots that were used. None: no batch began."""
    step_s: Measured | None = None
    """Mean time of a step in seconds. None: there was none."""
    step_s_by_shape: dict[str, Measured] = Field(default_factory=dict)
    """Mean seconds since the start by shape, as in `512x512`, that a full batch needs for each step
    with its share of all that is not a step."""
    bytes_per_pixel: dict[str, Measured] = Field(default_factory=dict)
    """Mean size of image files since the start, by format."""
    busy: Measured = 0.0
    """Share of the time during which a batch was on the devices."""
    last_error: str = ""
    """It is the latest error line of its log since the start."""
    last_error_at: Time = 0.0
    """It is a time in Unix seconds, by the clock of the worker's host; 0 if there was no error."""
    recovered: bool = False
    """It says whether the worker takes work and its devices have finished an image since the latest
    error."""
    started_at: Time = 0.0
    """It is a time in Unix seconds, by the clock of the worker's host."""
    reported_at: Time = 0.0
    """It is the time of the heartbeat, by the same clock."""
    lease_left_s: float | None = None
    """Seconds until the lease expires unless it is renewed; negative if it has expired."""

    @property
    def last_error_age_s(self) -> float | None:
        """The seconds since the latest error, up to a heartbeat too few; None if there was none, or
        the worker is of a release that does not say it."""
        if not self.last_error_at:
            return None
        expired_s = max(0.0, -(self.lease_left_s or 0.0))
        return max(0.0, self.reported_at - self.last_error_at) + expired_s

    def dump(self) -> str:
        """Return what is stored in Redis."""
        return self.model_dump_json(exclude={"lease_left_s"})


class WorkerRegistry:
    """Reads the status of the workers of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._workers = workers_key(namespace)
        self._leases = leases_key(namespace)
        self._drain_requests = drain_requests_key(namespace)

    def request_drain(self, workers: Iterable[str]) -> None:
        """Ask workers to drain. They do so at their next heartbeat."""
        if names := list(workers):
            self._redis.sadd(self._drain_requests, *names)

    def alive(self) -> list[str]:
        """Return the names of the workers that are alive: those whose lease has not expired."""
        now, _ = self._redis.time()  # leases expire by the server's clock
        names: list[str] | None = read_key(
            self._redis, lambda pipe: pipe.zrangebyscore(self._leases, now, "+inf")
        )
        return names or []

    def statuses(self) -> list[WorkerStatus]:
        """Return every worker that has a lease, also one that has expired, by name."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._workers)
            pipe.zrange(self._leases, 0, -1, withscores=True)
            pipe.time()
            texts, leases, (seconds, microseconds) = read_ignoring_wrong_types(pipe)
        now = seconds + microseconds / 1e6  # leases expire by the server's clock
        return [
            _read(name, (texts or {}).get(name), ends_at - now)
            for name, ends_at in sorted(leases or [])
        ]


def _read(worker: str, text: str | None, lease_left_s: float) -> WorkerStatus:
    try:
        reported = WorkerStatus.model_validate_json(text or "{}")
    except ValidationError:
        reported = WorkerStatus(worker=worker, state=WorkerState.UNKNOWN)
    state = WorkerState.LOST if lease_left_s < 0 else reported.state
    return reported.model_copy(
        update={"worker": worker, "state": state, "lease_left_s": lease_left_s}
    )
