"""Make those parts of a worker that need nothing but its settings and the keys of its lanes."""

from collections.abc import Callable

from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.lane_copies import restore_copies
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lane_claims import LaneClaims
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.stores import Stores


def make_claims(
    settings: WorkerSettings, worker: str, no_retry: Lanes, retrying: Lanes
) -> LaneClaims:
    """Return the claims of a worker in all lanes, whose two clients are those of `Claims`."""
    parts = [
        Claims(
            no_retry_client=lane.client,
            retrying_client=retrying[lane.number].client,
            namespace=lane.namespace,
            worker=worker,
            lease_s=settings.lease_s,
            max_message_bytes=settings.max_message_bytes,
            newer_message_s=settings.newer_message_s,
            lane=lane.number,
            lanes=len(no_retry),
        )
        for lane in no_retry
    ]
    return LaneClaims(parts, [lane.namespace for lane in no_retry], settings.namespace)


def image_expiry(lane: Lane, settings: WorkerSettings, stores: Stores) -> ImageExpiry:
    """Return the times at which the images of the jobs of a lane expire."""
    return ImageExpiry(
        lane.client,
        lane.namespace,
        stores.images_url or stores.images.url,
        default_keep_s=settings.keep,
    )


def on_lease_lost(lanes: Lanes, number: int, report: Callable[[int], None]) -> None:
    """Report that the lease in a lane was lost, or is new: its server may have been emptied."""
    if len(lanes) > 1:
        restore_copies(lanes, number)
    report(number)


def make_dead_letters(lane: Lane, lanes: Lanes, settings: WorkerSettings) -> DeadLetters:
    """Return the dead letters of one of these lanes."""
    return DeadLetters(
        lane.client,
        lane.namespace,
        max_bytes=settings.max_dead_letter_bytes,
        lanes=len(lanes),
    )
