"""Test your own code that submits jobs, without a Redis server and without a worker.

    pip install "fakeredis[lua]" pytest
    pytest examples/unit_test_with_fakeredis.py

The client is the real one. fakeredis stands in for Redis, inside the process, and runs imagefleet's
Lua scripts. Nothing generates images: jobs stay queued. unit_test_with_fake_fleet.py has images.
"""

from collections.abc import Iterator

import fakeredis
import pytest

from imagefleet import Client, InvalidRequest, Job, State


def illustrate(client: Client, chapters: list[str]) -> list[Job]:
    """Submit one job per chapter. This is the function under test."""
    return [
        client.submit(f"an illustration of {title}", id=f"chapter-{number}", priority=6)
        for number, title in enumerate(chapters, start=1)
    ]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("redis.Redis", fakeredis.FakeRedis)
    with Client("redis://localhost:6379/0") as client:
        yield client


def test_each_chapter_becomes_one_job(client: Client) -> None:
    jobs = illustrate(client, ["the storm", "the island"])
    statuses = [job.status() for job in jobs]
    assert [status.id for status in statuses] == ["chapter-1", "chapter-2"]
    assert {status.state for status in statuses} == {State.QUEUED}
    assert statuses[1].request.prompt == "an illustration of the island"


def test_submitting_again_makes_no_second_job(client: Client) -> None:
    assert illustrate(client, ["the storm"]) == illustrate(client, ["the storm"])


def test_a_chapter_title_that_is_too_long_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="at most 4000 characters"):
        illustrate(client, ["x" * 4000])
