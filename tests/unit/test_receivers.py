"""Receivers have one spelling, and their senders are shared so that none can hold them all."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
    receiver_of,
)
from imagefleet.worker.webhooks.receiver_limits import NoPermit, SenderPermits

NO_ANSWER = DeliveryOutcome(verdict=DeliveryVerdict.RETRY, reason="no answer", ms=10_000)
ANSWER = DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=204)


@pytest.fixture
def open_connections() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("receiver", "urls"),
    [
        (
            "hooks.example",
            [
                "http://hooks.example",
                "HTTP://HOOKS.Example./x",
                "http://hooks.example:80/",
                "http://hooks.example..:0080?x",
                "http://user:secret@hooks.example/",
                "https://hooks.example:443/",
                "http://hooks.example:/",
            ],
        ),
        ("hooks.example:81", ["http://hooks.example:81", "http://a@Hooks.example.:081/y"]),
        ("127.0.0.1", ["http://127.1/", "http://0x7f000001", "http://[::ffff:127.0.0.1]:80/"]),
        ("[2001:db8::1]:81", ["http://[2001:DB8:0::1]:81/", "http://[2001:db8::0:0:1]:81"]),
    ],
)
def test_all_spellings_of_a_receiver_are_one(receiver: str, urls: list[str]) -> None:
    assert {receiver_of(url) for url in urls} == {receiver}


@pytest.mark.parametrize("url", ["http://hooks.example:port/", "http://[::1/", "http://h:99999/"])
def test_a_message_whose_address_has_no_receiver_is_rejected(url: str) -> None:
    text = OutboxMessage(id="a", job_id="a", url=url, body="{}").dump()
    with pytest.raises(MessageRejected):
        OutboxMessage.parse(text)


def test_many_names_of_one_address_leave_senders_for_others(open_connections: ExitStack) -> None:
    permits = SenderPermits()
    for number in range(10):
        permit = permits.take(f"n{number}", proven=False)
        assert permit is not None
        open_connections.enter_context(permit.at("192.0.2.1"))
    for spelling in ("192.0.2.1", "::ffff:192.0.2.1"):
        other = permits.take(f"other-{spelling}", proven=False)
        assert other is not None
        with pytest.raises(NoPermit), other.at(spelling):
            pass
        with other.at("192.0.2.2"):
            pass


def test_a_network_of_ipv6_counts_as_one_address(open_connections: ExitStack) -> None:
    permits = SenderPermits()
    for number in range(10):
        permit = permits.take(f"n{number}", proven=False)
        assert permit is not None
        open_connections.enter_context(permit.at(f"2001:db8::{number}"))
    other = permits.take("other", proven=False)
    assert other is not None
    with pytest.raises(NoPermit), other.at("2001:db8::ffff"):
        pass


def test_three_senders_are_reserved_for_receivers_that_answered_lately() -> None:
    permits = SenderPermits()
    for tenant in range(40):
        for number in range(20):
            permits.take(f"new-{number}@{tenant}", proven=False)
    assert permits.free().unproven_senders == 0
    taken = [permits.take(f"good@{tenant}", proven=True) for tenant in range(41, 44)]
    assert None not in taken
    assert permits.free().senders == 0


def test_a_tenant_whose_receivers_hang_has_three_senders_for_those_that_answered() -> None:
    permits = SenderPermits()
    taken = [permits.take(f"new-{number}", proven=False) for number in range(20)]
    assert [permit is not None for permit in taken] == [True] * 15 + [False] * 5
    taken = [permits.take("good", proven=True) for _ in range(4)]
    assert [permit is not None for permit in taken] == [True] * 3 + [False]


def test_tenants_whose_receivers_hang_leave_senders_to_all_others() -> None:
    permits = SenderPermits()

    def take_all(tenant: str) -> int:
        taken = [permits.take(f"new-{number}@{tenant}", proven=False) for number in range(40)]
        return sum(permit is not None for permit in taken)

    assert [take_all(tenant) for tenant in "abc"] == [15, 7, 4]
    assert permits.take("good@d", proven=False) is not None


def test_an_address_that_hangs_for_one_tenant_has_all_permits_for_another(
    open_connections: ExitStack,
) -> None:
    permits = SenderPermits()
    first = permits.take("first@loud", proven=False)
    assert first is not None
    with first.at("192.0.2.1"):
        pass
    first.record(NO_ANSWER)
    first.release()
    for number in range(10):
        permit = permits.take(f"n{number}@loud", proven=False)
        if permit is not None:
            with suppress(NoPermit):
                open_connections.enter_context(permit.at("192.0.2.1"))
    for share in ("first@quiet", *(f"n{number}@quiet" for number in range(9))):
        permit = permits.take(share, proven=False)
        assert permit is not None
        open_connections.enter_context(permit.at("192.0.2.1"))
    assert not any(share.endswith("@quiet") for share in permits.free().slow)


def test_all_slow_receivers_of_a_tenant_have_four_senders_and_each_has_one() -> None:
    permits = SenderPermits()
    for number in range(10):
        permit = permits.take(f"slow-{number}", proven=False)
        assert permit is not None
        permit.record(NO_ANSWER)
        permit.release()
    assert permits.take("slow-0", proven=False) is not None
    assert permits.take("slow-0", proven=False) is None
    taken = [permits.take(f"slow-{number}", proven=False) for number in range(1, 10)]
    assert sum(permit is not None for permit in taken) == 3
    assert permits.take("new", proven=False) is not None


def test_all_slow_receivers_of_all_tenants_leave_senders_for_those_that_are_new() -> None:
    permits = SenderPermits()
    for tenant in range(20):
        for number in range(6):
            permit = permits.take(f"slow-{number}@{tenant}", proven=False)
            assert permit is not None
            permit.record(NO_ANSWER)
            permit.release()
    shares = [f"slow-{number}@{tenant}" for tenant in range(20) for number in range(6)]
    taken = [share for share in shares if permits.take(share, proven=False) is not None]
    assert Counter(share.partition("@")[2] for share in taken).most_common(1)[0][1] == 4
    assert len(taken) == 16
    assert permits.free().unproven_senders == 13


def test_a_new_name_of_an_address_that_hangs_is_slow_from_its_first_try() -> None:
    permits = SenderPermits()
    first = permits.take("first", proven=False)
    assert first is not None
    with first.at("192.0.2.1"):
        pass
    first.record(NO_ANSWER)
    first.release()
    second, proven = permits.take("second", proven=False), permits.take("proven", proven=True)
    assert second is not None
    assert proven is not None
    with second.at("192.0.2.1"):
        third = permits.take("third", proven=False)
        assert third is not None
        with pytest.raises(NoPermit), third.at("192.0.2.1"):
            pass
        with proven.at("192.0.2.1"):
            pass
    assert {"second", "third"} < permits.free().slow
    second.record(ANSWER)
    assert "second" not in permits.free().slow
    for permit in (second, third, proven):
        permit.release()
    free = permits.free()
    assert (free.senders, free.slow_senders, free.unproven_senders) == (32, 16, 29)


def test_loops_that_claim_at_the_same_time_claim_no_more_than_there_are_senders() -> None:
    permits = SenderPermits(loops=8)
    woken: list[int] = []
    claims = [permits.reserving(partial(woken.append, number)) for number in range(40)]
    claimable = [claim.__enter__().claimable for claim in claims]
    assert claimable[:8] == [4, 4, 3, 3, 3, 2, 2, 2]
    assert sum(claimable) == 32
    assert permits.take("receiver", proven=False) is not None  # a claim is not in its own way
    assert permits.free().unproven_senders == 0
    claims[-1].__exit__(None, None, None)
    assert woken == []  # nothing was left by one that had none
    claims[0].__exit__(None, None, None)
    assert 39 in woken
    for claim in claims[1:-1]:
        claim.__exit__(None, None, None)
    assert permits.free().senders == 31
