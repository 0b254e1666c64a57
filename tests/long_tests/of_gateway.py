"""Long tests of the HTTP gateway."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.mark_long import Long

OF_GATEWAY: Final[Mapping[str, Sequence[Long]]] = {
    "integration/gateway/test_document.py": [
        Long(
            "test_generated_requests_are_answered_as_the_document_says",
            ["test_3000_generated_requests_are_answered_as_the_document_says"],
        ),
    ],
    "integration/gateway/test_job_watcher.py": [
        Long(
            "test_a_watch_goes_on_after_redis_was_restarted",
            ["test_a_watch_goes_on_after_a_failover"],
        ),
    ],
}
