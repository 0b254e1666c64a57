"""Report the events of a run to its receiver.

Input: a run and its receiver. Output: callbacks in the outbox, which workers deliver as those of
jobs. `run_events.lua` writes them, in the scripts that change a run, so no event is lost with the
process that caused it.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagefleet.shared.bulk.redis_keys import outbox_keys, run_key
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key

if TYPE_CHECKING:
    from redis import Redis

IDLE_FACTOR: Final = 10
"""A run is reported as stalled when no image was made for so many times the seconds
after which workers look for its lost shards. By then their first search has not helped."""
_RENEW_S: Final = 3.0
"""Seconds between two signs that a summary is being written. Searches wait for at least 10."""


@dataclass(frozen=True, kw_only=True)
class RunReceiver:
    """The receiver of the events of a run, and what each event says of the run."""

    url: str
    name: str
    """It is what the events call the run."""
    tenant: str | None = None
    """It is the tenant whose secrets sign the events. If it is None, those of the fleet do."""
    data: Mapping[str, object] = field(default_factory=dict)
    """Each event says this of the run, beside its name and its counts."""

    @property
    def callback(self) -> str:
        """Return what `run_events.lua` writes into each message."""
        tenant = {} if self.tenant is None else {"tenant": self.tenant}
        return json.dumps({"job_id": self.name, "url": self.url, **tenant})

    @property
    def callback_data(self) -> str:
        """Return what `run_events.lua` writes into each body."""
        return json.dumps({"id": self.name, **self.data})


class RunEvents:
    """Reports what the scripts that change a run do not. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self._outbox = outbox_keys(namespace)
        self._script = load_script(client, __package__, "run_events", "report_run", outbox=True)
        self._renew_script = load_script(client, __package__, "renew_summary")

    def set_receiver(self, run: str, receiver: RunReceiver) -> None:
        """Let a run have a receiver. One that is new to it gets the event of the start, or of the
        end; then the summary must be written. Do nothing without a record."""
        self._report(run, receiver)

    def receiver_of(self, run: str) -> tuple[str, str] | None:
        """Return the name of a run in its events, and the address of its receiver.

        None: there is no record, it has no receiver, or what it says of it is damaged.
        """
        key = run_key(self._namespace, run)
        text = read_key(self._redis, lambda pipe: pipe.hget(key, "callback"))
        try:
            fields = json.loads(text or "")
            return str(fields["job_id"]), str(fields["url"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def report_end(self, run: str) -> None:
        """Report the end of a run, now that its summary is written."""
        self._report(run)

    @contextmanager
    def summing_up(self, run: str) -> Iterator[None]:
        """Report the end of a run that has succeeded when the block has written its summary.

        Until then no search reports it. After an error nothing is reported here: who tries next
        does it, or a search if nobody does.
        """
        ended = threading.Event()
        renewal = threading.Thread(
            target=self._renew_summary, args=(run, ended), name=f"sum-up-{run}", daemon=True
        )
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()
        self.report_end(run)

    def _renew_summary(self, run: str, ended: threading.Event) -> None:
        """Say again and again that the summary of a run is being written, until it has ended."""
        from redis.exceptions import RedisError

        while not ended.is_set():
            with suppress(RedisError):  # the next one may arrive
                self._renew_script(keys=[run_key(self._namespace, run)])
            ended.wait(_RENEW_S)

    def report_end_again(self, run: str) -> bool:
        """Report the end of a run once more. Return False if it has no receiver, or no record."""
        return bool(self._report(run, again=True))

    def _report(
        self, run: str, receiver: RunReceiver | None = None, *, again: bool = False
    ) -> object:
        keys = [run_key(self._namespace, run), *self._outbox]
        return self._script(keys=keys, args=[*receiver_args(receiver), int(again)])


def receiver_args(receiver: RunReceiver | None) -> tuple[str, str]:
    """Return the arguments `callback` and `callback_data` of a script; empty: as they are."""
    return ("", "") if receiver is None else (receiver.callback, receiver.callback_data)
