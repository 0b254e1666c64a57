"""Callbacks on their way: from the outbox in Redis to the receivers, signed, retried for days."""

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
    """Begin to deliver; `stop()` on what comes back ends it.

    Raises:
        ConfigurationError: a secret or an allowed address that is none.
    """
    secrets = [secret.get_secret_value() for secret in settings.webhook_secrets]
    check_secrets(secrets)
    if not secrets:
        log.warning("IMAGEFLEET_WEBHOOK_SECRETS is empty: callbacks are sent without a signature")
    sender = Sender(secrets, AllowList.parse(settings.callback_allow))
    courier = DeliveryLoop(Outbox(client, settings.namespace, settings.retention_s), sender)
    courier.start()
    return courier
