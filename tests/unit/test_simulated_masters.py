"""Simulated fleets on servers that do one thing at a time."""

import pytest

from benchmarks.simulation.masters import IMAGES_PER_S, simulate
from benchmarks.simulation.service_times import ServiceTimes, Visits


def _times(servers: int, claim_s: float) -> ServiceTimes:
    """Return times in which each action of jobs concerns one server, any of them."""

    def visits(cpu_s: float) -> list[Visits]:
        return [
            tuple(cpu_s * (server == own) for server in range(servers)) for own in range(servers)
        ]

    samples = {kind: visits(claim_s / 4) for kind in ("record", "check", "end", "upkeep 0")}
    return ServiceTimes(
        samples={**samples, "claim": visits(claim_s)},
        intervals_s={"upkeep 0": 5.0},
        sync_s=claim_s / 100,
    )


@pytest.mark.parametrize("servers", [1, 4])
def test_devices_never_wait_while_servers_have_time(servers: int) -> None:
    got = simulate(_times(servers, 0.01), 20, share=1.0)
    assert got["of_linear"] == pytest.approx(1.0, abs=0.05)  # ends of batches are counted
    assert 10 <= got["claim_ms_p50"] < 40
    assert got["fullest_server"] < 0.2


def test_full_servers_do_as_much_more_as_there_are_more_of_them() -> None:
    one, four = (
        simulate(_times(servers, 0.1), hosts, share=0.5) for servers, hosts in ((1, 100), (4, 400))
    )
    assert one["images_per_s"] < 0.5 * 100 * IMAGES_PER_S
    assert one["fullest_server"] > 0.9
    assert four["images_per_s"] == pytest.approx(4 * one["images_per_s"], rel=0.1)


def test_requests_that_come_together_share_a_synchronisation() -> None:
    few, many = (
        simulate(ServiceTimes(**{**vars(_times(1, 0.001)), "sync_s": 0.001}), hosts, share=0.1)
        for hosts in (2, 60)
    )
    assert many["redis_ms_per_image"] < 0.9 * few["redis_ms_per_image"]
