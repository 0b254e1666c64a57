"""Start the delivery of callbacks from a worker's settings."""

import logging
from collections.abc import Callable

from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.webhooks.lane_delivery import LaneDelivery
from imagefleet.worker.webhooks.sender import Sender

log = logging.getLogger(__name__)


def start_delivery(
    lanes: Lanes, settings: WorkerSettings, count_workers: Callable[[], int]
) -> LaneDelivery:
    """Start to deliver the callbacks in the outboxes. Call `stop()` on the result to end it.

    Args:
        count_workers: see `DeliveryLoop`.

    Raises:
        ConfigurationError: a webhook secret or an entry of the allow list is invalid.
    """
    secrets = settings.signing_secrets()
    if not secrets.fleet:
        whose = " of other tenants" if secrets.by_tenant else ""
        log.warning(
            "IMAGEFLEET_WEBHOOK_SECRETS is empty: callbacks%s are sent without a signature", whose
        )
    sender = Sender(secrets, AllowList.parse(settings.callback_allow))
    outboxes = [
        Outbox(lane.client, lane.namespace, settings.retention_s, lanes=len(lanes))
        for lane in lanes
    ]
    delivery = LaneDelivery(outboxes, sender, count_workers)
    delivery.start()
    return delivery
