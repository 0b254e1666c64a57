"""Write the state of a fleet in JSON, without anything of its tenants' jobs.

Input: a snapshot. Output: an object for JSON. Rates are of the last minute.
"""

import math
import time
from typing import Any

from imagefleet.producer.fleet.conditions import RUNBOOK, Condition
from imagefleet.producer.fleet.recent_events import ENDS_WITHIN_S
from imagefleet.producer.fleet.snapshot import FleetSnapshot
from imagefleet.producer.gateway.operations.private_text import without_private
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus


def fleet_body(snapshot: FleetSnapshot, ends: dict[str, int]) -> dict[str, Any]:
    """Return a fleet: hosts, queues, rates, and what else waits.

    Args:
        ends: jobs that ended within half an hour, by state and code.
    """
    status, memory = snapshot.status, snapshot.memory
    return {
        "object": "fleet",
        "hosts": [_host(each) for each in status.workers],
        "differences": [
            {"host": host_of(each.worker), "text": str(each), "allowed": each.allowed}
            for each in status.differences
        ],
        "queues": [_queue(each) for each in status.queues],
        "rates": _rates(status, ends),
        "failed_attempts": status.failures,
        "waiting": status.waiting,
        "in_flight": status.in_flight,
        "delayed": status.delayed,
        "dead_letters": status.dead_letters,
        "callbacks": {"waiting": status.callbacks, "given_up": status.callbacks_given_up},
        "dataset_idle_s": snapshot.dataset_idle_s,
        "redis": {
            "used_bytes": None if memory is None else memory.used,
            "limit_bytes": None if memory is None else memory.limit,
        },
        "lanes_down": list(status.lanes_down),
        "models": sorted({offer.model for offer in snapshot.offers.values()}),
    }


def alert_body(condition: Condition) -> dict[str, Any]:
    """Return a condition."""
    return {
        "name": condition.name,
        "severity": condition.severity,
        "text": condition.text,
        "what_to_do": condition.what_to_do,
        "for_s": condition.for_s,
        "runbook": RUNBOOK,
    }


def _host(worker: WorkerStatus) -> dict[str, Any]:
    return {
        "name": worker.worker,
        "host": host_of(worker.worker),
        "state": worker.state.value,
        "model": worker.model,
        "shapes": list(worker.shapes),
        "devices": worker.devices,
        "slots": worker.capacity,
        "in_flight": worker.claims,
        "busy": worker.busy,
        "fill": worker.batch_fill,
        "step_s": worker.step_s,
        "images": worker.images,
        "images_per_minute": round(60 * worker.images_per_s, 2),
        "lease_s": _finite(worker.lease_left_s),
        "last_seen_s": _seconds_since(worker.reported_at),
        "started_at": worker.started_at or None,
        "release": worker.version,
        "drained": worker.state is WorkerState.DRAINING,
        "reason": without_private(worker.last_error) or None,
        "reason_at": worker.last_error_at or None,
        "recovered": worker.recovered,
    }


def _finite(seconds: float | None) -> float | None:
    """Return a time that anybody may have written to Redis as a number of JSON."""
    return round(seconds, 1) if seconds is not None and math.isfinite(seconds) else None


def _seconds_since(at: float) -> float | None:
    """Return the seconds since a time by the clock of another host."""
    return round(max(0.0, time.time() - at), 1) if at else None


def _queue(queue: QueueStatus) -> dict[str, Any]:
    return {
        "model": queue.model,
        "shape": queue.shape,
        "work": "rows" if queue.datasets else "jobs",
        "waiting": queue.waiting,
        "tenants": queue.tenants,
        "oldest_s": None if queue.oldest_s is None else round(queue.oldest_s, 1),
    }


def _rates(status: FleetStatus, ends: dict[str, int]) -> dict[str, Any]:
    in_an_hour = 3_600 / ENDS_WITHIN_S
    by_state = {name: count for name, count in ends.items() if ":" not in name}
    failed = sum(ends.values()) - sum(by_state.values())
    attempts = sum(sum(codes.values()) for codes in status.failures.values())
    return {
        "images_per_minute": round(60 * sum(each.images_per_s for each in status.workers), 2),
        "succeeded_per_hour": by_state.get("succeeded", 0) * in_an_hour,
        "failed_per_hour": failed * in_an_hour,
        "cancelled_per_hour": by_state.get("cancelled", 0) * in_an_hour,
        "failed_attempts_per_hour": attempts,
    }
