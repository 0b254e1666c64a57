"""Test your own code that submits jobs, without Redis and without a worker.

    pytest examples/unit_test_with_fake_client.py

The code under test takes the client as an argument, so a test can pass a small fake. The fake is
written by hand: imagefleet submits jobs by Lua scripts, and fakeredis runs those only with `lupa`.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from imagefleet import Client, InvalidRequest, Job, JobRequest


def illustrate(client: Client, chapters: list[str]) -> list[Job]:
    """Submit one job per chapter. This is the function under test."""
    return [
        client.submit(f"an illustration of {title}", id=f"chapter-{number}", priority=6)
        for number, title in enumerate(chapters, start=1)
    ]


@dataclass
class FakeClient:
    """A client that checks requests as the real one does, and keeps them."""

    requests: dict[str, JobRequest] = field(default_factory=dict)

    def submit(self, prompt: str, *, id: str, **parameters: Any) -> Job:
        self.requests[id] = JobRequest.parse({"prompt": prompt, **parameters})
        return Job(id=id, client=self)


def test_each_chapter_becomes_one_job() -> None:
    client = FakeClient()
    jobs = illustrate(client, ["the storm", "the island"])
    assert [job.id for job in jobs] == ["chapter-1", "chapter-2"]
    assert client.requests["chapter-2"].prompt == "an illustration of the island"
    assert {request.priority for request in client.requests.values()} == {6}


def test_a_chapter_title_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 4000 characters"):
        illustrate(FakeClient(), ["x" * 4000])
