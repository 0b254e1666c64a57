"""The retry schedule: fast at first, three days in all, never at the same second for everybody."""

from imagefleet.worker.webhooks.backoff import PAUSES, pause_after


def test_pauses_grow_and_reach_three_days() -> None:
    assert list(PAUSES) == sorted(PAUSES)
    assert 72 * 3600 <= sum(PAUSES) <= 73 * 3600


def test_each_pause_stays_within_a_fifth_of_the_table() -> None:
    for attempts, pause in enumerate(PAUSES, start=1):
        drawn = [pause_after(attempts) for _ in range(50)]
        assert all(found is not None and 0.8 * pause <= found <= 1.2 * pause for found in drawn)
        assert len(set(drawn)) > 1


def test_after_the_last_pause_comes_one_last_try() -> None:
    assert pause_after(len(PAUSES)) is not None
    assert pause_after(len(PAUSES) + 1) is None


def test_another_table_may_be_given() -> None:
    assert pause_after(1, (0.0,)) == 0.0
    assert pause_after(2, (0.0,)) is None


def test_a_receiver_that_asks_for_a_longer_pause_gets_it_up_to_a_day() -> None:
    assert pause_after(1, asked_s=120) == 120
    assert pause_after(1, asked_s=10**9) == 24 * 3600
    longest = pause_after(len(PAUSES), asked_s=1)
    assert longest is not None
    assert longest > 3600
