"""Verify and repair the datasets of runs in the background, shared between the gateways.

A gateway that claims a verification reads all files of the dataset, shard by shard, and notes how
far it is. If it dies, another one begins anew, seconds later. With a repair the damaged shards are
sent again; once the workers have made them, all files are read once more.
"""

import logging
import time
import uuid
from typing import Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.verify_report import Problem as DatasetProblem
from imagefleet.producer.bulk.verify_report import VerifyReport
from imagefleet.producer.gateway.batches.count_rows import count_rows
from imagefleet.producer.gateway.batches.run_keeper import RunKeeper
from imagefleet.producer.gateway.batches.run_order import OrderRecord
from imagefleet.producer.gateway.batches.verification import (
    FoundProblem,
    Verification,
    VerificationState,
)
from imagefleet.producer.gateway.files.due_threads import DueThreads
from imagefleet.producer.gateway.files.due_times import DueTimes
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.redis_keys import verifications_due_key
from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.errors import BrokerUnavailable, ImagefleetError, StorageUnavailable
from imagefleet.shared.jobs.model import MAX_ERROR_CHARACTERS
from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

_CLAIM_S: Final = 15.0
"""Seconds after which another gateway goes on with what a killed one had begun."""
_LOOK_S: Final = 2.0
"""A gateway looks at a run that is repaired after so many seconds again."""
_LATER_S: Final = 5.0
"""Seconds after which a verification is tried again that could not go on."""
_NOTE_EVERY_S: Final = 1.0
_MAX_TRIES: Final = 5
"""Gateways may begin a verification so often: its files may be what ends them."""
_MAX_FILE_BYTES: Final = 512 << 20
"""A file of a shard is read as a whole, and a gateway has about 2 GiB of memory."""
_MAX_PROBLEMS: Final = 100
_SEPARATOR: Final = " "
"""It stands between the id of a run and that of its verification, and is in neither."""


class _Interrupted(Exception):
    """This gateway ends, so another one goes on."""


class Verifier:
    """The thread of one gateway that verifies datasets."""

    def __init__(self, gateway: Gateway, keeper: RunKeeper, claim_s: float = _CLAIM_S) -> None:
        connection = gateway.client.connection
        key = verifications_due_key(connection.namespace)
        self._keeper = keeper
        self._due = DueTimes(connection, key, claim_s)
        self._threads = DueThreads("imagefleet-verify", 1, self.work)

    def start(self) -> None:
        """Start the thread. It ends with the process, or when this is closed."""
        self._threads.start()

    def close(self) -> None:
        """Begin nothing new, and leave what is begun to other gateways."""
        self._threads.close()

    def request(self, record: OrderRecord, *, repair: bool) -> None:
        """Let a gateway verify a run. Raises BrokerUnavailable."""
        verification = Verification(
            id=uuid.uuid4().hex,
            state=VerificationState.QUEUED,
            repair=repair,
            requested_at=time.time(),
        )
        self._keeper.orders.change(record.id, verification=verification)
        self._due.put(f"{record.id}{_SEPARATOR}{verification.id}", 0.0)

    def work(self) -> bool:
        """Work on the verification that is due first. Return whether there was one."""
        member = self._due.claim()
        if member is None:
            return False
        order_id, _, verification_id = member.partition(_SEPARATOR)
        record = self._keeper.orders.read(order_id)
        verification = None if record is None else record.verification
        if record is None or verification is None or verification.id != verification_id:
            self._due.forget(member)
            return True
        with self._due.held(member):
            again_s = None if verification.has_ended else self._advance(record, verification)
        if again_s is None:
            self._due.forget(member)
        else:
            self._due.put(member, again_s)
        return True

    def _advance(self, record: OrderRecord, verification: Verification) -> float | None:
        """Let a verification go on. Return the seconds until it is due again; None if it has
        ended."""
        try:
            return self._go_on(record, verification)
        except _Interrupted:
            self._change(record, verification)
            return 0.0
        except (BrokerUnavailable, StorageUnavailable) as error:
            log.warning("the verification of %s waits: %s", record.id, error)
            self._change(record, verification)
            return _LATER_S
        except (ImagefleetError, Problem) as error:
            self._fail(record, verification, str(error))
            return None

    def _go_on(self, record: OrderRecord, verification: Verification) -> float | None:
        run = self._keeper.places.open(record)
        if verification.state is VerificationState.REPAIRING and not run.status().done:
            return _LOOK_S
        if verification.tries >= _MAX_TRIES:
            self._fail(record, verification, f"{_MAX_TRIES} attempts to read its files did not end")
            return None
        begun = verification.model_copy(
            update={
                "state": VerificationState.RUNNING,
                "tries": verification.tries + 1,
                "shards": len(run.plan.shards),
                "checked": 0,
            }
        )
        self._change(record, begun)
        if too_large := _too_large(run):
            limit = f"{_MAX_FILE_BYTES:,} bytes; `imagefleet bulk verify {run.id}` reads them"
            self._fail(record, begun, f"{too_large} has more than {limit}")
            return None
        report = self._verify(record, begun, run)
        return self._end(record, begun, run, report)

    def _verify(self, record: OrderRecord, begun: Verification, run: BulkRun) -> VerifyReport:
        noted_at = time.monotonic()

        def note(checked: int, problems: int) -> None:
            nonlocal noted_at
            if self._threads.is_closed:
                raise _Interrupted
            if time.monotonic() - noted_at > _NOTE_EVERY_S:
                noted_at = time.monotonic()
                update = {"checked": checked, "problem_count": problems}
                self._change(record, begun.model_copy(update=update))

        return run.verify(on_shard=note)

    def _end(
        self, record: OrderRecord, begun: Verification, run: BulkRun, report: VerifyReport
    ) -> float | None:
        """Note what was found, and repair it once if that was asked for."""
        found = begun.model_copy(
            update={
                "state": VerificationState.DONE,
                "ended_at": time.time(),
                "checked": report.shards,
                "planned": report.planned,
                "present": report.present,
                "failed": report.failed,
                "problem_count": len(report.problems),
                "problems": tuple(map(_found, report.problems[:_MAX_PROBLEMS])),
            }
        )
        if begun.sent_again and not record.order.is_batch:
            self._keeper.orders.change(record.id, **count_rows(record, run))
        may_repair = begun.repair and report.problems and not begun.sent_again
        if not may_repair or not (sent := run.repair(report)):
            self._change(record, found)
            return None
        repairing = {
            "state": VerificationState.REPAIRING,
            "ended_at": None,
            "tries": 0,
            "sent_again": sent,
        }
        self._change(record, found.model_copy(update=repairing))
        return _LOOK_S

    def _fail(self, record: OrderRecord, verification: Verification, error: str) -> None:
        log.info("the verification of %s has failed: %s", record.id, error)
        update = {
            "state": VerificationState.FAILED,
            "ended_at": time.time(),
            "error": printable(error, MAX_ERROR_CHARACTERS),
        }
        self._change(record, verification.model_copy(update=update))

    def _change(self, record: OrderRecord, verification: Verification) -> None:
        if self._keeper.orders.read(record.id) is not None:  # it may have expired meanwhile
            self._keeper.orders.change(record.id, verification=verification)


def _too_large(run: BulkRun) -> str | None:
    """Return the key of a file that a gateway does not read; None if there is none."""
    for _, stats in finished_shards(run.store, run.plan, run.plan.shards):
        for file in stats.files:
            if file.size > _MAX_FILE_BYTES:
                return file.key
    return None


def _found(problem: DatasetProblem) -> FoundProblem:
    detail = printable(problem.detail, MAX_ERROR_CHARACTERS)
    return FoundProblem(
        shard=problem.shard, what=problem.what, detail=detail, samples=problem.samples
    )
