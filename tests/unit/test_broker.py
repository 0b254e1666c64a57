"""One Redis address, in two spellings."""

import pytest

from shared.broker import celery_url


@pytest.mark.parametrize(
    ("ours", "celery_s"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:p@h/0?health_check_interval=2", "redis://:p@h/0?health_check_interval=2"),
        ("rediss://:p@h:6379/0", "rediss://:p@h:6379/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
    ],
)
def test_celery_reads_the_same_address_in_its_own_spelling(ours: str, celery_s: str) -> None:
    assert celery_url(ours) == celery_s
