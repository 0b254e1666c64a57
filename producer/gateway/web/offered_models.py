"""Name the models that workers offer as requests may name them."""

from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL


async def offered_models(gateway: Gateway) -> dict[str, Offer]:
    """Return the offers by their models, that of the default one first, then by the other names
    that the operator gave them. Empty before the first worker was ready."""
    offers = dict(await gateway.threads.run(gateway.client.offers))
    default = offers.pop(DEFAULT_MODEL, None)
    aliases = gateway.settings.model_aliases
    named = {alias: offers[model] for alias, model in aliases.items() if model in offers}
    if default is not None:
        offers = {default.model: default, **offers}
    return offers | named
