"""A dataset being made, from the producer's side: start it, watch it, stop it, send parts again.

Goes in: rows, a destination, parameters. Comes out: a `BulkRun`, which lives in the destination and
in Redis and needs no process of the producer's to go on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from producer.bulk.inputs import Rows
from producer.bulk.planning import Wish, plan, read_plan, read_rejected
from producer.bulk.rows import Order
from shared.bulk.layout import CARD, RUN_STATS, parts_prefix, stats_key
from shared.bulk.plan import BulkFormat, Plan, RowParameters, ShardPlan, run_id
from shared.bulk.records import NewRun, RunStatus
from shared.bulk.stats import RowFailure, ShardStats
from shared.bulk.summary import summarise
from shared.errors import (
    ConfigurationError,
    InvalidRequest,
    ResultTimeout,
    UnknownRun,
)
from shared.jobs import ImageFormat, JobRequest, State
from shared.storage import ObjectStore, open_store

if TYPE_CHECKING:
    from producer.bulk.verify import Verdict
    from producer.client import Client

DEFAULT_SHARD_SIZE: Final = 1_000
DEFAULT_PRIORITY: Final = 3
_READERS: Final = 16
_POLL_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class BulkRun:
    """The handle of a run. Costs nothing to keep; make another from the destination at any time."""

    id: str
    destination: str
    plan: Plan = field(repr=False)
    store: ObjectStore = field(repr=False, compare=False)
    client: "Client" = field(repr=False, compare=False)

    def status(self) -> RunStatus:
        """Where it stands. Raises UnknownRun if Redis has no record of it (any more)."""
        with self.client.asking() as runs:
            return runs.get(self.id)

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until it ends, however it ends.

        Raises:
            ResultTimeout: `timeout` seconds passed; the run goes on.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while not (status := self.status()).done:
            if time.monotonic() >= deadline:
                raise ResultTimeout(f"run {self.id} is not done after {timeout:g} s; it goes on")
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
        if status.state is State.SUCCEEDED and not self.store.exists(RUN_STATS):
            summarise(self.store, self.plan)  # who ended it did not live to write it
        return status

    def cancel(self) -> State:
        """Stop it: workers put its shards down between batches. What is made stays."""
        with self.client.asking() as runs:
            return runs.cancel(self.id)

    def verify(self, *, sample: int = 0) -> "Verdict":
        """Hold every file against the plan, and `sample` rows against what the fleet paints now."""
        from producer.bulk.verify import verify

        return verify(self, sample=sample)

    def repair(self, verdict: "Verdict") -> int:
        """Have the shards with problems made again. How many there are."""
        from producer.bulk.repair import repair

        return repair(self, verdict)

    def rejected(self) -> Iterator[dict[str, object]]:
        """Rows that could not be planned: row, field, value, reason."""
        return read_rejected(self.store)

    def failures(self) -> Iterator[RowFailure]:
        """Rows that were planned and could not be painted, as far as shards are finished."""
        for _, stats in self.finished(self.plan.shards):
            yield from stats.failures

    def retry_failed(self) -> int:
        """Send the finished shards with failed rows once more. How many went."""
        again = [shard for shard, stats in self.finished(self.plan.shards) if stats.failures]
        again += self._in_state(State.FAILED)
        return self.send_again(again)

    def send_again(
        self,
        shards: Sequence[ShardPlan],
        spoiled: Callable[[ShardPlan], Sequence[str]] = lambda shard: (),
    ) -> int:
        """Take the commit markers of `shards` away, and the files that are `spoiled`, and have
        what is missing painted. Shards on their way or in work are left alone. How many went."""
        if not shards:
            return 0
        terms = self._standing()
        with self.client.asking() as runs:
            runs.start(self._record(terms))
            free = set(runs.withdraw(self.id, (shard.number for shard in shards)))
        again = [shard for shard in shards if shard.number in free]
        for shard in again:
            parts = self.store.list(parts_prefix(shard.name, shard.sha256))
            told = [key for key in parts if not key.endswith(".tar")]  # what failed before
            for key in (*spoiled(shard), *told, stats_key(shard.name)):
                self.store.delete(key)
        if again:
            for key in (RUN_STATS, CARD):
                self.store.delete(key)
        self._send(terms)
        return len(again)

    def resume(self, *, max_failures: int | None, priority: int) -> None:
        """Send every shard that is neither finished nor on its way; finished is one whose commit
        marker still stands."""
        done = self._in_state(State.SUCCEEDED)
        stands = {shard.name for shard, _ in self.finished(done)}
        if gone := [shard for shard in done if shard.name not in stands]:
            self.send_again(gone)
        unsettled = (State.RUNNING, State.CANCELLED)
        if len(stands) < len(self.plan.shards) or self.status().state in unsettled:
            self._send((max_failures, priority))

    def _send(self, terms: tuple[int | None, int]) -> None:
        """Set the run going: every shard that is neither finished nor on its way.
        Of shards that Redis has not heard of, those with a commit marker are finished."""
        run = self._record(terms)
        with self.client.asking() as runs:
            runs.start(run)
            known = {record.shard for record in runs.shards(self.id)}
            unheard = [shard for shard in self.plan.shards if shard.number not in known]
            runs.note_finished(
                self.id,
                [(s.number, stats.samples, stats.reasons()) for s, stats in self.finished(unheard)],
            )
            runs.enqueue(run, map(_sent, self.plan.shards))
            runs.settle(self.id)

    def finished(self, shards: Sequence[ShardPlan]) -> Iterator[tuple[ShardPlan, ShardStats]]:
        """Those of `shards` whose commit marker stands, with it."""
        with ThreadPoolExecutor(_READERS) as readers:
            for shard, stats in zip(shards, readers.map(self._marker, shards), strict=True):
                if stats is not None and stats.plan_sha256 == shard.sha256:
                    yield shard, stats

    def _marker(self, shard: ShardPlan) -> ShardStats | None:
        with suppress(KeyError, ValueError):
            return ShardStats.model_validate_json(self.store.get(stats_key(shard.name)))
        return None

    def _in_state(self, state: State) -> list[ShardPlan]:
        with self.client.asking() as runs:
            found = {record.shard for record in runs.shards(self.id) if record.state is state}
        return [shard for shard in self.plan.shards if shard.number in found]

    def _standing(self) -> tuple[int | None, int]:
        """Failures allowed and priority of the run so far."""
        try:
            status = self.status()
        except UnknownRun:
            return None, DEFAULT_PRIORITY
        return status.max_failures, status.priority

    def _record(self, terms: tuple[int | None, int]) -> NewRun:
        return NewRun(
            id=self.id,
            destination=self.destination,
            plan_digest=self.plan.digest,
            model=self.plan.model,
            shards=len(self.plan.shards),
            samples=self.plan.samples,
            max_failures=terms[0],
            priority=terms[1],
        )


def start(
    client: "Client",
    rows: Rows,
    destination: str | Path,
    *,
    format: BulkFormat | str = BulkFormat.WEBDATASET,
    image_format: ImageFormat | str = ImageFormat.PNG,
    shard_size: int = DEFAULT_SHARD_SIZE,
    seed: int = 0,
    columns: dict[str, str] | None = None,
    dedupe: bool = False,
    max_failures: int | None = None,
    priority: int = DEFAULT_PRIORITY,
    height: int | None = None,
    width: int | None = None,
    model: str | None = None,
    **parameters: Any,
) -> BulkRun:
    """Plan and send a dataset, or go on with the same one. See `Client.bulk`."""
    if unknown := sorted(parameters.keys() - RowParameters.model_fields.keys()):
        known = ", ".join(RowParameters.model_fields)
        raise InvalidRequest(
            unknown[0], parameters[unknown[0]], f"no such parameter; besides {known}"
        )
    if max_failures is not None and max_failures < 0:
        raise InvalidRequest("max_failures", max_failures, "must be at least 0")
    if not 0 <= priority <= 9:
        raise InvalidRequest("priority", priority, "must be between 0 and 9")
    order = Order(
        parameters=_row_parameters(parameters),
        size=(height, width),
        model=model,
        seed=seed,
        shard_size=shard_size,
        columns=columns or {},
    )
    wish = Wish(
        order=order,
        format=_one_of(BulkFormat, "format", format),
        image_format=_one_of(ImageFormat, "image_format", image_format),
        dedupe=dedupe,
    )
    where, store = _open(destination)
    made, _ = plan(rows, wish, store, client.offers())
    run = _handle(client, where, store, made)
    run.resume(max_failures=max_failures, priority=priority)
    return run


def find(client: "Client", name: str | Path) -> BulkRun:
    """The run of a destination, or of a run id. Raises UnknownRun."""
    destination = str(name)
    with suppress(UnknownRun), client.asking() as runs:
        destination = runs.get(destination).destination
    where, store = _open(destination)
    made = read_plan(store)
    if made is None:
        raise UnknownRun(f"{destination!r} is neither a run here nor a destination with a plan")
    return _handle(client, where, store, made)


def _handle(client: "Client", destination: str, store: ObjectStore, made: Plan) -> BulkRun:
    return BulkRun(
        id=run_id(store.url, made), destination=destination, plan=made, store=store, client=client
    )


def _open(destination: str | Path) -> tuple[str, ObjectStore]:
    """The destination as every host can open it, and its store. A path without a scheme is a
    folder here."""
    url = str(destination)
    if "://" not in url:
        url = Path(url).absolute().as_uri()
    if url.startswith("memory:"):
        raise InvalidRequest("destination", url, "must be a place that workers can reach")
    try:
        store = open_store(url)
    except ConfigurationError as error:
        sentence = str(error).partition(": ")[2] or str(error)
        raise InvalidRequest("destination", url, sentence) from None
    query = urlsplit(url).query
    return store.url + (f"?{query}" if query else ""), store


def _row_parameters(given: dict[str, Any]) -> RowParameters:
    """Raises InvalidRequest."""
    try:
        return RowParameters.model_validate(given)
    except ValueError:
        JobRequest.parse({"prompt": "any", **given})  # says it in our words
        raise


def _one_of(kind: Any, field: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidRequest(field, value, f"must be one of {known}") from None


def _sent(shard: ShardPlan) -> tuple[int, int, int | None, int | None]:
    return shard.number, shard.samples, shard.height, shard.width
