"""Permits for jobs that start from images are shared between tenants and hosts."""

from types import SimpleNamespace
from typing import Any

import pytest

from imagefleet.worker.jobs.input_permits import (
    FairPermits,
    ImageSource,
    ReturnSchedule,
    image_source,
)
from imagefleet.worker.jobs.intake import Intake
from imagefleet.worker.jobs.job_lanes import JobLanes


def _source(tenant: str | None, *hosts: str) -> ImageSource:
    return ImageSource(tenant=tenant, hosts=frozenset(hosts))


def _take_all(permits: FairPermits[str], source: ImageSource, name: str = "") -> int:
    """Take permits until none is given, and return how many there were."""
    taken = 0
    while permits.take(f"{name}{source}{taken}", source):
        taken += 1
    return taken


def test_one_tenant_gets_half_of_the_places_and_the_next_half_of_the_rest() -> None:
    permits: FairPermits[str] = FairPermits(64)
    taken = [_take_all(permits, _source(tenant)) for tenant in ("a", "b", "c", None)]
    assert taken == [32, 16, 8, 4]


def test_a_single_place_is_given() -> None:
    permits: FairPermits[str] = FairPermits(1)
    assert _take_all(permits, _source(None, "slow.example")) == 1


def test_one_host_leaves_places_to_other_hosts_of_its_tenant() -> None:
    permits: FairPermits[str] = FairPermits(64)
    assert _take_all(permits, _source("a", "slow.example")) == 22
    assert _take_all(permits, _source("a", "good.example")) == 10
    assert _take_all(permits, _source("b")) == 16, "the store of the fleet is no host"


def test_a_place_is_free_after_its_release() -> None:
    permits: FairPermits[str] = FairPermits(2)
    assert permits.take("1", _source("a"))
    assert not permits.take("2", _source("a"))
    permits.release("1")
    assert permits.take("2", _source("a"))
    permits.release_unless(lambda holder: holder != "2")
    assert permits.take("3", _source("a"))


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({"prompt": "a"}, None),
        ({"prompt": "a", "image": None}, None),
        (None, None),
        ([], None),
        ({"image": "jobs/a/0.png"}, _source(None)),
        ({"image": 7, "tenant": 7}, _source(None)),
        ({"image": "http://[", "tenant": "a"}, _source("a")),
        (
            {"image": "https://U:p@Slow.Example.:8443/a", "mask_image": "http://1.2.3.4/b"},
            _source(None, "slow.example", "1.2.3.4"),
        ),
    ],
)
def test_the_source_of_any_request_can_be_read(
    request_fields: object, expected: ImageSource | None
) -> None:
    assert image_source(request_fields) == expected


def test_delayed_jobs_of_a_tenant_return_one_after_another() -> None:
    now = 100.0
    schedule = ReturnSchedule(clock=lambda: now)
    pauses = [schedule.next_pause_s("a") for _ in range(600)]
    assert pauses[0] == 2.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(2.0 + 599 * 0.02)
    assert schedule.next_pause_s("b") == 2.0
    assert max(schedule.next_pause_s("a") for _ in range(50_000)) == pytest.approx(600.0)
    now += 1_000.0
    assert schedule.next_pause_s("a") == 2.0


def test_the_returns_of_jobs_of_several_lanes_are_spread_together() -> None:
    starter = SimpleNamespace(
        refuser=SimpleNamespace(reject_message=None), add_ons=(), reads_weights=True
    )
    lane: Any = SimpleNamespace(claims=None, starter=starter)
    claims: Any = SimpleNamespace(holds=None)
    nothing: Any = None
    intake = Intake(JobLanes(claims, [lane] * 3), nothing, nothing, 3, on_started=nothing)
    assert len({id(each._returns) for each in intake._receivers}) == 1
