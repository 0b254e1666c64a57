"""Runs in which nothing moves, whoever waits for them: what was lost of them is sent again.

Goes in: the records of the runs, and the plans in their destinations. A Redis that failed over may
have forgotten the message of a shard, and who started a run may not have lived to send all of them
or to end it. Knows no devices and no claims.
"""

import logging
import random
import threading

from imagefleet.shared.bulk.file_layout import PLAN
from imagefleet.shared.bulk.messages import shard_to_send
from imagefleet.shared.bulk.plan import Plan, run_id
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.summary import write_missing_summary
from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore, open_store

log = logging.getLogger(__name__)


class RunRecovery:
    """Every worker has one; Redis gives a run to one of them at a time."""

    def __init__(self, runs: RunRecords, stalled_s: float) -> None:
        """`stalled_s`: without a move, before a run is looked after; also how long the other runs
        wait for a destination that does not answer."""
        self._runs = runs
        self._stalled_s = stalled_s
        self._in_progress: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="caretaker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def recover_stalled_runs(self) -> None:
        """Look after the runs that stand still. One that cannot be helped is told in the log, and
        left to another worker."""
        while (
            not self._stopped.is_set()
            and (run := self._runs.find_stalled(self._stalled_s)) is not None
        ):
            if run in self._in_progress:  # it hangs here, maybe not elsewhere
                self._runs.release_stalled(run)
            else:
                self._recover_with_timeout(run)

    def _loop(self) -> None:
        while not self._stopped.wait(self._stalled_s * random.uniform(0.5, 1.5)):
            # in step, the same worker would find each run, also the one it cannot help
            try:
                self.recover_stalled_runs()
            except Exception:  # no reason to stop painting, and others look too
                log.exception("nobody here looked after the runs")

    def _recover_with_timeout(self, run: str) -> None:
        """In a thread of its own: a network folder may hang for ever, and nothing ends that."""
        self._in_progress.add(run)
        helper = threading.Thread(
            target=self._recover_and_log, args=(run,), name=f"care-{run}", daemon=True
        )
        helper.start()
        helper.join(self._stalled_s)
        if helper.is_alive():
            log.warning("run %s: its destination does not answer; the next is looked after", run)

    def _recover_and_log(self, run: str) -> None:
        try:
            self._recover(run)
        except Exception as error:
            log.warning("run %s stands still and cannot be looked after: %s", run, error)
            self._runs.release_stalled(run)
        finally:
            self._in_progress.discard(run)

    def _recover(self, run: str) -> None:
        status = self._runs.get(run)
        store = open_store(status.destination)
        plan = _plan_of(run, store)
        if sent := self._runs.resend_lost(status.as_new_run, map(shard_to_send, plan.shards)):
            log.warning("run %s: shards that were lost, sent again: %d", run, sent)
        if self._runs.finish_run(run) is State.SUCCEEDED:
            write_missing_summary(store, plan)


def _plan_of(run: str, store: ObjectStore) -> Plan:
    """Raises PlanDamaged."""
    try:
        plan = Plan.load(store.get(PLAN))
    except KeyError:
        raise PlanDamaged(f"{store.url}{PLAN} is missing") from None
    if run_id(store.url, plan) != run:
        raise PlanDamaged(f"{store.url} holds the plan of another run")
    return plan
