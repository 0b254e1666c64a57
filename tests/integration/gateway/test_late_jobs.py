"""A prediction whose job is accepted only after its deadline is canceled all the same."""

import asyncio
from typing import Any

import pytest

from imagefleet.producer.gateway.access.caller import LOOPBACK
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.producer.gateway.predictions.create import NewPrediction, create
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer


def test_a_deadline_that_is_past_when_the_job_is_accepted_cancels_it(
    redis_server: LocalRedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    submit = gateway.jobs.submit

    async def submit_late(*arguments: Any, **options: Any) -> str:
        while not gateway.deadlines.sweep():  # as another gateway does
            await asyncio.sleep(0.05)
        return await submit(*arguments, **options)

    monkeypatch.setattr(gateway.jobs, "submit", submit_late)

    async def state() -> State:
        new = NewPrediction(
            name="a",
            parameters={"prompt": "a"},
            webhook={},
            base_url="http://gateway.example",
            cancel_after_s=1,
        )
        await create(gateway, LOOPBACK, new)
        assert gateway.deadlines.sweep() == 1
        return (await gateway.jobs.status(LOOPBACK, "a")).state

    assert asyncio.run(state()) is State.CANCELLED
    gateway.close()


def test_a_prediction_stays_listed_though_one_with_its_id_was_noted_first_and_refused(
    redis_server: LocalRedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    submit = gateway.client.submit_in_parts

    def submit_second(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        assert not gateway.index.add(None, "a")  # as the request for the other one does
        gateway.client.submit("first", id="a")
        return submit(*arguments, **options)

    monkeypatch.setattr(gateway.client, "submit_in_parts", submit_second)
    new = NewPrediction(
        name="a",
        parameters={"prompt": "second"},
        webhook={},
        base_url="http://gateway.example",
        cancel_after_s=None,
    )
    with pytest.raises(Problem, match="other parameters"):
        asyncio.run(create(gateway, LOOPBACK, new))
    assert _listed(gateway) == ["a"]
    gateway.close()


def _listed(gateway: Gateway) -> list[str]:
    return [each.id for each in gateway.search.page(LOOPBACK, None, 10).statuses]
