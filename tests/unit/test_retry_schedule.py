"""The retry schedule is fast at first, takes three days in all, and spreads its retries."""

from imagefleet.shared.webhooks.outbox import MAX_AGE_S
from imagefleet.worker.webhooks.retry_schedule import RETRY_DELAYS_S, retry_delay_s


def test_the_delays_grow_and_reach_three_days() -> None:
    assert list(RETRY_DELAYS_S) == sorted(RETRY_DELAYS_S)
    assert 72 * 3600 <= sum(RETRY_DELAYS_S) <= 73 * 3600


def test_no_callback_is_too_old_before_its_last_try_unless_its_receiver_asks_for_it() -> None:
    assert sum(RETRY_DELAYS_S) * 1.2 < MAX_AGE_S


def test_each_delay_stays_within_a_fifth_of_the_table() -> None:
    for attempts, expected_s in enumerate(RETRY_DELAYS_S, start=1):
        drawn = [retry_delay_s(attempts) for _ in range(50)]
        assert all(
            delay_s is not None and 0.8 * expected_s <= delay_s <= 1.2 * expected_s
            for delay_s in drawn
        )
        assert len(set(drawn)) > 1


def test_one_last_try_follows_the_last_delay() -> None:
    assert retry_delay_s(len(RETRY_DELAYS_S)) is not None
    assert retry_delay_s(len(RETRY_DELAYS_S) + 1) is None


def test_another_schedule_may_be_given() -> None:
    assert retry_delay_s(1, (0.0,)) == 0.0
    assert retry_delay_s(2, (0.0,)) is None


def test_retry_after_lengthens_a_delay_up_to_a_day() -> None:
    assert retry_delay_s(1, retry_after_s=120) == 120
    assert retry_delay_s(1, retry_after_s=10**9) == 24 * 3600
    longest = retry_delay_s(len(RETRY_DELAYS_S), retry_after_s=1)
    assert longest is not None
    assert longest > 3600
