"""Start the delivery of callbacks from a worker's settings."""

import logging
from typing import TYPE_CHECKING

from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.signature import check_secrets
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.settings import WorkerSettings
from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop
from imagefleet.worker.webhooks.sender import Sender

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)


def start_delivery(client: "Redis", settings: WorkerSettings) -> DeliveryLoop:
    """Start to deliver the callbacks in the outbox. Call `stop()` on the result to end it.

    Raises:
        ConfigurationError: a webhook secret or an entry of the allow list is invalid.
    """
    secrets = [secret.get_secret_value() for secret in settings.webhook_secrets]
    check_secrets(secrets)
    if not secrets:
        log.warning("IMAGEFLEET_WEBHOOK_SECRETS is empty: callbacks are sent without a signature")
    sender = Sender(secrets, AllowList.parse(settings.callback_allow))
    loop = DeliveryLoop(Outbox(client, settings.namespace, settings.retention_s), sender)
    loop.start()
    return loop
