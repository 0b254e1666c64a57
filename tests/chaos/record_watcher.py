"""Watch the job records of a chaos run, as producers see them."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis

from imagefleet.producer.connection.lane_records import LaneRecords
from imagefleet.shared.jobs.model import TERMINAL
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.lanes import Lanes
from tests.chaos.audit import terminal_fields

_POLL_EVERY_S: Final = 1.0
_RECORDS_PER_ROUND_TRIP: Final = 500


class RecordWatcher:
    """The record watcher polls the job records and keeps each job's terminal fields when it first
    sees them."""

    def __init__(self, lanes: Lanes, ids: Sequence[str]) -> None:
        self.lanes = lanes
        self.open = list(ids)
        self.first_terminal: dict[str, str] = {}
        self._records = LaneRecords(lanes, 3600)
        self._polled_at = 0.0

    @property
    def client(self) -> redis.Redis:
        """The client of the only server, or of lane 0."""
        return self.lanes.first.client

    def poll(self) -> None:
        if time.monotonic() < self._polled_at + _POLL_EVERY_S:
            return
        with suppress(redis.RedisError):
            states = zip(self.open, self._records.states(self.open), strict=True)
            ended = [job_id for job_id, state in states if state in TERMINAL]
            for status in self._records.read_each(ended):
                assert isinstance(status, JobStatus)
                self.first_terminal[status.id] = terminal_fields(status)
            self.open = [job_id for job_id in self.open if job_id not in self.first_terminal]
        self._polled_at = time.monotonic()

    def read_all(self) -> dict[str, JobStatus]:
        """Return every record in Redis, planned or not."""
        statuses: dict[str, JobStatus] = {}
        for lane in self.lanes:
            prefix = f"{lane.namespace}:job:"
            found = lane.client.scan_iter(f"{prefix}*", count=1000)
            ids = [key.removeprefix(prefix) for key in found]
            assert {self.lanes.of(job_id).number for job_id in ids} <= {lane.number}, ids
            for at in range(0, len(ids), _RECORDS_PER_ROUND_TRIP):
                for status in self._records.read_each(ids[at : at + _RECORDS_PER_ROUND_TRIP]):
                    assert isinstance(status, JobStatus)
                    statuses[status.id] = status
        return statuses
