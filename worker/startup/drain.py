"""How long a drain may take: minutes if somebody stops the worker, seconds if the host goes away.

Input: the two lengths, and what the platform says. Output: the time that is left. This module does
not depend on jobs. docs/decisions/0020-two-drains.md says where the lengths come from.
"""

import logging
import os
import platform
import threading
import time
from collections.abc import Sequence
from typing import Final

from imagefleet.shared.process.kubernetes import KubernetesError, KubernetesRefusal, Pods
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.startup.log_texts import describe_jobs

log = logging.getLogger(__name__)

DRAIN_GRACE_S: Final = 10.0
"""Seconds beyond its length until a drain that does not end is cut short."""
_REPORT_BEFORE_S: Final = 0.5
_API_TIMEOUT_S: Final = 2.0


class DrainTime:
    """The time for one drain. It begins once, and may then become shorter, never longer."""

    def __init__(self, drain_s: float, preempted_drain_s: float) -> None:
        """
        Args:
            drain_s: seconds if somebody stops the worker.
            preempted_drain_s: seconds if the platform takes the host away.
        """
        self._drain_s = drain_s
        self._preempted_drain_s = min(drain_s, preempted_drain_s)
        self._ends_at: float | None = None
        self.is_shortened = False
        """Whether the platform has left less time since the drain began."""
        self._lock = threading.RLock()  # a signal may come while its thread holds it

    def begin(self) -> None:
        """Let the drain end in `drain_s`, and the process not much later. A second call does
        nothing."""
        self._end_in(self._drain_s, begins=True)

    def begin_for_preempted_host(self) -> None:
        """Let the drain end in `preempted_drain_s`, also if it has begun with more."""
        self.begin()
        self._end_in(self._preempted_drain_s)

    def begin_for_signal(self) -> None:
        """Let the drain end in `drain_s`, or in less if Kubernetes says why this pod is stopped.

        The answer is awaited in a thread, because a signal's handler calls this.
        """
        self.begin()
        threading.Thread(target=self._ask_kubernetes, name="why stopped", daemon=True).start()

    def left_s(self) -> float:
        """Return the seconds until the drain must have ended, at least 0."""
        with self._lock:
            return 0.0 if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def _end_in(self, seconds: float, *, begins: bool = False) -> None:
        """Let the drain end in `seconds`, unless that is later than was said before."""
        ends_at = time.monotonic() + seconds
        with self._lock:
            if self._ends_at is not None and (begins or self._ends_at <= ends_at):
                return
            self._ends_at = ends_at
            self.is_shortened = not begins
        force_exit_after(seconds + DRAIN_GRACE_S)
        # It is said before, by another thread: a log that blocks must not keep the process alive.
        report = threading.Timer(seconds + DRAIN_GRACE_S - _REPORT_BEFORE_S, self._report_late)
        report.daemon = True
        report.start()

    def _report_late(self) -> None:
        if not self.left_s():
            log.error(
                "the drain did not end in time, so this process ends by force; other workers get "
                "what it holds once its lease has expired"
            )

    def _ask_kubernetes(self) -> None:
        try:
            pods = Pods.of_this_cluster()
            if pods is None:
                return
            grace_s = grace_of(pods.read(pod_name(), timeout_s=_API_TIMEOUT_S))
        except KubernetesRefusal as error:
            log.warning(
                "why this pod is stopped is unknown, so the drain may take %s s: %s; let the "
                "service account get pods, and set POD_NAME, as deploy/kubernetes does",
                self._drain_s,
                error,
            )
            return
        except (KubernetesError, OSError) as error:
            log.warning("why this pod is stopped is unknown, so its host may go away: %s", error)
            grace_s = None
        if grace_s is None:
            log.warning("nobody deleted this pod, so its host goes away")
            self.begin_for_preempted_host()
        else:
            self._end_in(max(0.0, grace_s - DRAIN_GRACE_S))


def pod_name() -> str:
    """Return the name of this pod: POD_NAME, or the host's name, which it is in most pods."""
    return os.environ.get("POD_NAME") or platform.node()


def grace_of(pod: dict[str, object]) -> float | None:
    """Return the seconds that Kubernetes leaves a pod it deletes; None if nobody has deleted it.

    An eviction, a rollout and a scale-in delete the pod before its containers are stopped. If the
    node shuts down, the kubelet stops them itself and deletes nothing. So does a liveness probe
    that fails, and then there is little to wait for either.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination and
    https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
    """
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("deletionTimestamp") is None:
        return None
    seconds = metadata.get("deletionGracePeriodSeconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def force_exit_after(seconds: float, code: ExitCode = ExitCode.TEMPFAIL) -> None:
    """End the process after `seconds`, even if Redis is away or a pool thread hangs.

    Other workers reclaim what is left once the lease expires.
    """
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def end_without(attempts: Sequence[Attempt]) -> None:
    """End the process soon if there are attempts whose threads wait for a lane that does not
    answer. Other workers get their jobs once the lease in that lane has expired."""
    if attempts:
        log.warning("%s left to other workers", describe_jobs(attempts))
        force_exit_after(DRAIN_GRACE_S)
