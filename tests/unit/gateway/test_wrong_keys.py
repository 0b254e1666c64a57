"""Wrong keys are counted by address, over a minute, in bounded memory."""

import pytest

from imagefleet.producer.gateway.access.wrong_keys import WrongKeys, network_of


class _Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    return _Clock(monkeypatch)


@pytest.mark.parametrize("per_minute", [1, 7, 60, 100_000])
def test_an_address_may_send_a_minute_of_wrong_keys_at_once(clock: _Clock, per_minute: int) -> None:
    wrong_keys, cost_s = WrongKeys(per_minute), 60 / per_minute
    assert [wrong_keys.take("192.0.2.1") for _ in range(per_minute)] == [0] * per_minute
    waits = [wrong_keys.take("192.0.2.1") for _ in range(3)]
    assert waits == pytest.approx([cost_s] * 3, rel=0.01)  # a refused one does not count
    clock.now += cost_s
    assert wrong_keys.take("192.0.2.1") == 0
    assert wrong_keys.take("192.0.2.1") > 0
    clock.now += 3_600
    assert [wrong_keys.take("192.0.2.1") for _ in range(per_minute)] == [0] * per_minute
    assert wrong_keys.take("192.0.2.1") > 0


@pytest.mark.parametrize(
    "same",
    [
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8::1", "2001:db8:0:0:ffff:ffff:ffff:ffff"),
        ("2001:db8::1%eth0", "2001:db8::2"),
        ("", "no address"),
    ],
)
def test_addresses_of_one_network_are_counted_together(
    clock: _Clock, same: tuple[str, str]
) -> None:
    wrong_keys = WrongKeys(1)
    assert wrong_keys.take(same[0]) == 0
    assert wrong_keys.take(same[1]) > 0
    for other in ("192.0.2.2", "2001:db8:0:1::1"):
        assert wrong_keys.take(other) == 0


def test_the_address_that_was_quiet_for_longest_is_forgotten_beyond_10000(clock: _Clock) -> None:
    wrong_keys = WrongKeys(2)
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(10_000)]
    assert not any(wrong_keys.take(each) for each in addresses)
    assert wrong_keys.take(addresses[0]) == 0  # it owes its whole minute now, and was heard last
    assert wrong_keys.take("192.0.2.1") == 0  # in the place of addresses[1]
    assert wrong_keys.take(addresses[0]) > 0
    assert [wrong_keys.take(addresses[1]) for _ in range(3)] == [0, 0, pytest.approx(30)]


def test_a_network_has_a_name() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64"
