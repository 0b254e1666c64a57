"""Start the delivery of callbacks from a worker's settings."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop
from imagefleet.worker.webhooks.sender import Sender

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)


def start_delivery(
    client: "Redis", settings: WorkerSettings, count_workers: Callable[[], int]
) -> DeliveryLoop:
    """Start to deliver the callbacks in the outbox. Call `stop()` on the result to end it.

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
    outbox = Outbox(client, settings.namespace, settings.retention_s)
    loop = DeliveryLoop(outbox, sender, count_workers=count_workers)
    loop.start()
    return loop
