"""Keep the model that a caller has set for its requests that name none.

The web UI has one model for everybody. Here each API key has its own, at all gateways.
"""

from typing import Final

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.redis_keys import webui_model_key

_KEPT_S: Final = 30 * 86_400
"""Seconds without a request after which the model is forgotten."""


async def chosen_model(gateway: Gateway, caller: Caller) -> str | None:
    """Return the model that the caller has set; None: it has set none. Raises BrokerUnavailable."""
    return await gateway.threads.run(_read, gateway, caller)


async def choose_model(gateway: Gateway, caller: Caller, model: str) -> None:
    """Use a model for the requests of the caller that name none. Raises BrokerUnavailable."""
    await gateway.threads.run(_write, gateway, caller, model)


def _read(gateway: Gateway, caller: Caller) -> str | None:
    connection = gateway.client.connection
    key = webui_model_key(connection.namespace, caller.owner)
    with connection.translate_errors():
        model = connection.redis.get(key)
        if model is not None:
            connection.redis.expire(key, _KEPT_S)
    return None if model is None else str(model)


def _write(gateway: Gateway, caller: Caller, model: str) -> None:
    connection = gateway.client.connection
    key = webui_model_key(connection.namespace, caller.owner)
    with connection.translate_errors():
        connection.redis.set(key, model, ex=_KEPT_S)
