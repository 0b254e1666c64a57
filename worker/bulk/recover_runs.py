"""Recover stalled runs: send their lost shards again, and finish them if all shards have ended.

Input: the records of the runs, and the plans in their destinations. Output: messages of the lost
shards. A shard is lost if a Redis failover lost its message, or if the producer died before it had
sent all shards. Recovery does not need a waiting producer. This module uses neither devices nor
claims.
"""

import logging
import random
import threading

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.bulk.summary import NO_LICENSES, Licenses, write_missing_summary
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import open_store
from imagefleet.worker.bulk.destinations import DestinationPolicy
from imagefleet.worker.bulk.plan_check import PlanReader

log = logging.getLogger(__name__)


class RunRecovery:
    """Recovers stalled runs in a thread. Every worker has one; Redis gives a run to only
    one."""

    def __init__(
        self,
        runs: RunRecords,
        stalled_s: float,
        destinations: DestinationPolicy,
        licenses: Licenses = NO_LICENSES,
    ) -> None:
        """Create the thread without starting it.

        Args:
            stalled_s: seconds without a change after which a run counts as stalled. Also the time
                that other runs wait if one run's destination does not answer.
            destinations: decides where runs may be recovered.
            licenses: those that the cards of recovered datasets name.
        """
        self._runs = runs
        self._stalled_s = stalled_s
        self._destinations = destinations
        self._licenses = licenses
        self._in_progress: set[str] = set()
        self._hanging: set[str] = set()
        """These runs are in progress for longer than `stalled_s`."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="run-recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def recover_stalled_runs(self) -> None:
        """Recover all stalled runs. Log those that fail here, and leave them to other workers."""
        while not self._stopped.is_set():
            run = self._runs.stalled.find(self._stalled_s)
            if run is None:
                return
            if run in self._in_progress:  # its destination hangs on this host, perhaps only here
                self._runs.stalled.release(run)
            else:
                self._recover_with_timeout(run)

    def _loop(self) -> None:
        # Jitter: without it the same worker would find every run, also one that it cannot recover.
        while not self._stopped.wait(self._stalled_s * random.uniform(0.5, 1.5)):
            try:
                self.recover_stalled_runs()
            except Exception:  # the worker can still generate, and other workers search too
                log.exception("the search for stalled runs failed")

    def _recover_with_timeout(self, run: str) -> None:
        """Recover a run in a thread of its own, because a network folder may block forever."""
        self._in_progress.add(run)
        thread = threading.Thread(
            target=self._recover_and_log, args=(run,), name=f"recover-{run}", daemon=True
        )
        thread.start()
        thread.join(self._stalled_s)
        if thread.is_alive():
            self._hanging.add(run)
            self._runs.stalled.recovery_ended(run)
            log.warning(
                "run %s: its destination does not answer; continuing with the next run", run
            )

    def _recover_and_log(self, run: str) -> None:
        try:
            self._recover(run)
        except Exception as error:
            log.warning(
                "run %s is stalled, and this worker cannot recover it: %s; another worker will try",
                run,
                error,
            )
            end = self._runs.stalled.release
        else:
            end = self._runs.stalled.recovery_ended
        if run in self._hanging:  # its end was counted then
            self._hanging.discard(run)
        else:
            end(run)
        self._in_progress.discard(run)

    def _recover(self, run: str) -> None:
        status = self._runs.get(run)
        self._destinations.check(status.destination)
        store = open_store(status.destination)
        plan = PlanReader(run, status.destination).read(store)
        if sent := self._runs.resend_lost(status.as_new_run, shards_to_send(plan, plan.shards)):
            log.warning("run %s: sent %d lost shards again", run, sent)
        if self._runs.finish_run(run) is State.SUCCEEDED:
            with self._runs.events.summing_up(run):
                write_missing_summary(store, plan, self._licenses)
