"""A model that nobody has offered for a while is forgotten."""

import pytest
import redis

from imagefleet import Client, InvalidRequest
from imagefleet.shared.jobs.offers import OfferRegistry, OfferRenewal
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.engines import INFO
from tests.support.processes import StartWorker, until

DAY_S = 86400.0


@pytest.fixture
def registry(client: redis.Redis, namespace: str) -> OfferRegistry:
    registry = OfferRegistry(client, namespace)
    registry.announce(offer_of(INFO))
    return registry


def _age(client: redis.Redis, namespace: str, model: str, seconds: float) -> None:
    client.zincrby(f"{namespace}:catalogue:offered", -seconds, model)


def test_only_models_that_are_old_are_forgotten(
    registry: OfferRegistry, client: redis.Redis, namespace: str
) -> None:
    assert registry.renew(["default"], DAY_S) == []  # announced without a time: it begins now
    _age(client, namespace, "tiny", DAY_S - 60)
    assert registry.renew(["default"], DAY_S) == []
    _age(client, namespace, "tiny", 120)
    assert registry.renew(["default"], DAY_S) == ["tiny"]
    assert set(OfferRegistry(client, namespace).offers()) == {"default"}
    assert registry.renew(["default"], DAY_S) == []


def test_a_model_that_is_offered_is_kept(
    registry: OfferRegistry, client: redis.Redis, namespace: str
) -> None:
    registry.renew(["tiny", "default"], DAY_S)
    _age(client, namespace, "tiny", 100 * DAY_S)
    assert registry.renew(["tiny", "default"], DAY_S) == []


def test_offers_are_renewed_once_an_hour(
    registry: OfferRegistry, client: redis.Redis, namespace: str
) -> None:
    renewal = OfferRenewal(registry, DAY_S)
    renewal.renew_if_due(["tiny", "default"])
    _age(client, namespace, "tiny", 2 * DAY_S)
    renewal.renew_if_due(["default"])
    assert "tiny" in OfferRegistry(client, namespace).offers()


def test_a_worker_renews_its_own_model_and_forgets_those_of_others(
    start: StartWorker,
    producer: Client,
    registry: OfferRegistry,
    client: redis.Redis,
    namespace: str,
) -> None:
    registry.renew(["tiny"], DAY_S)
    _age(client, namespace, "tiny", 31 * DAY_S)
    start()
    until(lambda: set(OfferRegistry(client, namespace).offers()) == {"fake", "default"})
    offered_at = client.zscore(f"{namespace}:catalogue:offered", "fake")
    assert offered_at is not None
    with pytest.raises(InvalidRequest, match="no worker has offered this model"):
        producer.submit("a", model="tiny")
    assert producer.submit("a").result(timeout=900).model == "fake"
