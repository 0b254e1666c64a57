"""Dead letters in a real Redis are stored unchanged, found by letter or job, and redriven once."""

import json

import pytest
import redis

from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.jobs.celery_message import RECORDED, job_message
from imagefleet.shared.jobs.dead_letters import DeadLetter, DeadLetters, letters_of
from imagefleet.shared.jobs.model import JobError, State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.records import start_attempt


@pytest.fixture
def letters(client: redis.Redis, namespace: str) -> DeadLetters:
    return DeadLetters(client, namespace)


def _add(letters: DeadLetters, message: str, queue: str = "queue") -> DeadLetter:
    return letters.add(queue, message, code="message_rejected", reason="why", deliveries=1)


@pytest.mark.parametrize(
    ("message", "job_id"),
    [
        ('{"headers": {"id": "j1"}}', "j1"),
        ('{"headers": {"id": "\\ud800"}}', None),
        ('{"headers": {"id": 5}}', None),
        ('{"headers": null}', None),
        ("[" * 100_000, None),
        ("[]", None),
        ("not json", None),
    ],
)
def test_a_dead_letter_keeps_its_message_unchanged(
    letters: DeadLetters, message: str, job_id: str | None
) -> None:
    assert _add(letters, message).job_id == job_id
    [letter] = letters.read()
    assert (letter.list_key, letter.message, letter.reason) == ("queue", message, "why")


def test_adding_the_same_message_twice_makes_one_letter(letters: DeadLetters) -> None:
    assert _add(letters, "a").id == _add(letters, "a").id
    _add(letters, "b")
    assert {letter.message for letter in letters.read()} == {"a", "b"}


def test_letters_are_found_by_their_id_and_by_their_job_id(letters: DeadLetters) -> None:
    letter = _add(letters, '{"headers": {"id": "j1"}}')
    assert letters_of(letters.read(), [letter.id, "j1"]) == [letter]
    missing, found = letters_of(letters.read(), ["j2", "j1"])
    assert isinstance(missing, UnknownJob)
    assert "'j2'" in str(missing)
    assert found == letter


def test_the_oldest_letters_are_removed_beyond_the_limit_of_a_lane(
    client: redis.Redis, namespace: str
) -> None:
    letters = DeadLetters(client, namespace, lanes=5_000)  # of 10,000 letters
    for at, message in enumerate("abc"):
        letter = _add(letters, message)
        client.zadd(f"{namespace}:dead", {letter.id: at})
    _add(letters, "d")
    assert client.hlen(f"{namespace}:dead:letters") == 2
    assert {letter.message for letter in letters.read()} == {"c", "d"}


def _failed(records: JobRecords, client: redis.Redis, queue: str) -> str:
    records.submit([("j", JobRequest(prompt="a"))])
    message = client.rpop(queue)
    records.fail("j", "", JobError(code="x", message="y"), None)
    assert isinstance(message, str)
    return message


def test_redriving_queues_a_failed_job_with_fresh_counts(
    letters: DeadLetters, client: redis.Redis, namespace: str
) -> None:
    records, queue = JobRecords(client, namespace, 3600), list_key(f"{namespace}.default.native", 3)
    message = _failed(records, client, queue)
    letter = _add(letters, message, queue)
    assert letters.redrive(letter) is State.QUEUED
    assert client.lrange(queue, 0, -1) == [message]
    status = records.get("j")
    assert (status.state, status.error, status.finished_at) == (State.QUEUED, None, None)
    assert client.ttl(f"{namespace}:job:j") == -1
    with pytest.raises(UnknownJob):
        letters.redrive(letter)
    assert client.llen(queue) == 1


def test_a_job_redriven_before_its_message_is_acknowledged_is_queued_once(
    make_claims: MakeClaims, letters: DeadLetters, client: redis.Redis, namespace: str
) -> None:
    records, name = JobRecords(client, namespace, 3600), f"{namespace}.default.native"
    records.submit([("j", JobRequest(prompt="a"))])
    claims, groups = make_claims("w"), [QueueGroup(name="64x64", queues=(name,))]
    [claimed] = claims.claim(groups, 1)
    start_attempt(records, "j", claimed.attempt, claim=(claims.key, claimed.tag))
    records.fail("j", claimed.attempt, JobError(code="x", message="y"), None)
    assert letters.redrive(_add(letters, claimed.message, claimed.list_key)) is State.QUEUED
    assert claims.ack(claimed.tag, records.key("j"))
    [again] = claims.claim(groups, 2)
    assert (again.message, again.deliveries) == (claimed.message, 1)


def test_a_cancelled_job_is_not_redriven(
    letters: DeadLetters, client: redis.Redis, namespace: str
) -> None:
    records, queue = JobRecords(client, namespace, 3600), list_key(f"{namespace}.default.native", 3)
    records.submit([("j", JobRequest(prompt="a"))])
    letter = _add(letters, str(client.rpop(queue)), queue)
    records.cancel("j", "", None)
    assert letters.redrive(letter) is State.CANCELLED
    assert client.llen(queue) == 0
    assert letters.read() == [letter]


def test_redriving_a_message_without_a_job_queues_it_unchanged(
    letters: DeadLetters, client: redis.Redis, namespace: str
) -> None:
    letter = _add(letters, "unreadable", f"{namespace}.q")
    assert letters.redrive(letter) is State.QUEUED
    assert client.lrange(f"{namespace}.q", 0, -1) == ["unreadable"]


def test_a_job_whose_record_expired_can_be_redriven(
    letters: DeadLetters, client: redis.Redis, namespace: str
) -> None:
    queue = f"{namespace}.default.native"
    message = job_message("j", JobRequest.parse({"prompt": "a"}), queue)
    assert letters.redrive(_add(letters, message, queue)) is State.QUEUED
    [pushed] = client.lrange(queue, 0, -1)
    headers = json.loads(message)["headers"]
    assert headers.pop(RECORDED)  # with it a worker would believe that the job has ended
    assert json.loads(pushed) == {**json.loads(message), "headers": headers}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_letter_does_not_redrive_another_job_that_has_its_id(
    letters: DeadLetters, client: redis.Redis, namespace: str, *, recorded: bool
) -> None:
    """The job of the letter was deleted, or plain Celery sent the letter with an id in use."""
    records, queue = JobRecords(client, namespace, 3600), list_key(f"{namespace}.default.native", 3)
    message = _failed(records, client, queue)
    if not recorded:
        message = message.replace(f',"{RECORDED}":true', "")
    letter = _add(letters, message, queue)
    records.delete_ended("j")
    records.submit([("j", JobRequest(prompt="b"))])
    client.delete(queue)
    records.fail("j", "", JobError(code="x", message="y"), None)
    expires_s = client.ttl(f"{namespace}:job:j")
    with pytest.raises(MessageRejected, match="the job 'j' has other parameters now"):
        letters.redrive(letter)
    assert records.get("j").state is State.FAILED
    assert 0 < client.ttl(f"{namespace}:job:j") <= expires_s
    assert letters.read() == [letter]
    assert not client.exists(queue)


def test_a_dropped_letter_is_removed(letters: DeadLetters) -> None:
    letters.drop(_add(letters, "a"))
    assert letters.read() == []


def test_a_long_message_is_cut_and_not_redriven(letters: DeadLetters, client: redis.Redis) -> None:
    added = letters.add("q", "é" * 500_000, code="x", reason="why\x1b\ud800" * 9_000, deliveries=1)
    [letter] = letters.read()
    assert letter == added
    assert letter.is_cut
    assert letter.message.endswith("… (cut from 1000000 bytes)")
    assert len(letter.model_dump_json().encode()) < 170_000
    assert len(letter.reason) == 2_000
    assert letter.reason.isprintable()
    assert letter.arguments is None
    with pytest.raises(MessageRejected, match="too long"):
        letters.redrive(letter)
    assert not client.exists("q")


def test_the_longest_job_of_imagefleet_is_kept_whole(letters: DeadLetters) -> None:
    address = "http://h/" + "a" * 2_039
    request = JobRequest.parse(
        {
            "prompt": "\U0001f600" * 4_000,
            "negative_prompt": "\U0001f600" * 4_000,
            **dict.fromkeys(("image", "mask_image", "callback_url"), address),
            **dict.fromkeys(("model", "scheduler", "tenant"), "a" * 128),
        }
    )
    message = job_message("j" * 128, request, "q" * 400)
    assert not _add(letters, message).is_cut
    assert letters.read()[0].message == message


def test_a_letter_may_hold_anything_and_hides_no_other(
    letters: DeadLetters, client: redis.Redis, namespace: str
) -> None:
    _add(letters, "good")
    _add(letters, "\ud800 half a character", queue="\udcff")
    damaged = _add(letters, "damaged")
    client.hset(f"{namespace}:dead:letters", damaged.id, "{")
    newer = _add(letters, "newer")
    fields = json.loads(newer.model_dump_json())
    client.hset(f"{namespace}:dead:letters", newer.id, json.dumps({**fields, "colour": "blue"}))
    assert {letter.message for letter in letters.read()} == {
        "good",
        "\\ud800 half a character",
        "newer",
    }


def test_the_bytes_of_all_letters_are_bounded_and_the_oldest_are_dropped(
    client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    letters = DeadLetters(client, namespace, max_bytes=100_000)
    for number in range(8):
        letter = _add(letters, f"{number}" * 13_000)
        client.zincrby(f"{namespace}:dead", number - 100, letter.id)
    assert len(letters.read()) < 8
    assert letters.read()[0].message[0] == "7"
    sizes = [len(text) for text in client.hvals(f"{namespace}:dead:letters")]
    assert 50_000 < sum(sizes) <= 100_000
    assert client.hget(f"{namespace}:dead:totals", "dropped") == str(8 - len(sizes))
    assert "dropped the oldest" in caplog.text
    for letter in letters.read():
        letters.drop(letter)
    for number in range(5):
        _add(letters, f"{number}{number}" * 6_000)
    assert len(letters.read()) == 5, "letters that were dropped count no more"


def test_letters_of_a_release_that_kept_no_total_count_too(
    client: redis.Redis, namespace: str
) -> None:
    letters = DeadLetters(client, namespace, max_bytes=100_000)
    for number in range(7):
        letter = _add(letters, f"{number}" * 13_000)
        client.zincrby(f"{namespace}:dead", number - 100, letter.id)
    client.delete(f"{namespace}:dead:totals")
    _add(letters, "7" * 13_000)
    assert [letter.message[0] for letter in letters.read()] == list("765432")
