"""Read everything that the exporter exports of one fleet, within a few seconds or not at all.

Redis errors come out translated.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.fleet_status import FleetStatus
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.redis_client.connection import server_of
from imagefleet.shared.redis_client.memory import RedisMemory
from imagefleet.shared.settings.settings import Settings

READ_S: Final = 4.5
"""A snapshot takes at most this long. Prometheus waits 10 s for a page, and the rest is for a slow
network and a busy host."""
_LANES_S: Final = 1.2
"""All lanes of a cluster together have so long for each of three questions."""
_COMMAND_S: Final = 3.0
"""Redis must answer a command within this time. There is no second try: the next scrape is one."""


@dataclass(frozen=True, kw_only=True)
class FleetSnapshot:
    """What Redis knows of a fleet at one scrape. Its parts are read one after the other."""

    status: FleetStatus
    offers: Mapping[str, Offer] = field(default_factory=dict)
    """What workers offer, or have offered within `forget_models_s`, by model."""
    memory: RedisMemory | None = None
    """None: Redis does not say."""
    lanes: int = 1
    """It is the number of lanes; 1 on one server."""
    dataset_idle_s: float = 0.0
    """The longest time for which nothing has changed in a running dataset."""


class SnapshotReader:
    """Reads snapshots of one fleet, one at a time. Threads may share it.

    A lookup of a name, a handshake or a list of Sentinels may take longer than a scrape may. So
    each read has a thread of its own, which is left to itself after `READ_S`. A scrape that comes
    before it has ended waits for the same read, so that there is never more than one such thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._connection = Connection(settings, retries=0, answer_within_s=_COMMAND_S)
        self._server = server_of(settings.redis_url.get_secret_value())
        self._lock = threading.Lock()
        self._latest: Future[FleetSnapshot] | None = None

    def read(self) -> FleetSnapshot:
        """Return a snapshot that was finished after this call began.

        Raises:
            BrokerUnavailable: Redis does not answer, or not in time.
        """
        with self._lock:
            if self._latest is None or self._latest.done():
                self._latest = _start(lambda: read_snapshot(self._connection))
            latest = self._latest
        try:
            return latest.result(READ_S)
        except TimeoutError:
            raise BrokerUnavailable(
                f"Redis at {self._server} did not answer within {READ_S:g} s"
            ) from None

    def close(self) -> None:
        """Close the connections to Redis."""
        self._connection.close()


def _start(read: Callable[[], FleetSnapshot]) -> Future[FleetSnapshot]:
    answer: Future[FleetSnapshot] = Future()

    def run() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="snapshot", daemon=True).start()
    return answer


def read_snapshot(connection: Connection) -> FleetSnapshot:
    """Return the snapshot now. A lane that does not answer counts as it did last. Raises
    BrokerUnavailable."""
    status = connection.read_fleet(within_s=_LANES_S)
    with connection.runs_by_lane() as runs:
        dataset_idle_s = runs.longest_idle_s(_LANES_S)
    return FleetSnapshot(
        status=status,
        offers=connection.offers(),
        memory=connection.read_memory(_LANES_S),
        lanes=len(connection.lanes),
        dataset_idle_s=dataset_idle_s,
    )
