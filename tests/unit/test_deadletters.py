"""Dead letters keep the message, the reason, and tell the job if there is one to tell."""

import json

import fakeredis
import pytest

from worker.deadletters import DeadLetters


@pytest.mark.parametrize(
    ("message", "job_id"),
    [
        ('{"headers": {"id": "j1"}}', "j1"),
        ('{"headers": {"id": 5}}', None),
        ('{"headers": null}', None),
        ("[]", None),
        ("not json", None),
    ],
)
def test_a_letter_is_kept_whole(message: str, job_id: str | None) -> None:
    client = fakeredis.FakeRedis(decode_responses=True)
    assert DeadLetters(client, "ns").bury("queue", message, "why") == job_id
    [letter] = map(json.loads, client.lrange("ns:dead", 0, -1))
    assert (letter["list"], letter["message"], letter["reason"]) == ("queue", message, "why")
