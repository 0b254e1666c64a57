"""Long tests of the HTTP gateway."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.mark_long import EVERY, Long

OF_GATEWAY: Final[Mapping[str, Sequence[Long]]] = {
    "integration/gateway/test_batches.py": [
        Long(
            "test_a_cancelled_batch_has_the_images_of_an_unfinished_shard",
            ["test_a_cancelled_batch_has_the_images_that_were_there"],
        ),
    ],
    "integration/gateway/test_document.py": [
        Long(
            "test_generated_requests_are_answered_as_the_document_says",
            ["test_3000_generated_requests_are_answered_as_the_document_says"],
            in_ci=False,
        ),
    ],
    "integration/gateway/test_hanging_servers.py": [
        Long(
            "tests/unit/gateway/test_threads.py has calls that hang",
            [
                "test_a_frozen_redis_is_named_and_requests_go_on_when_it_does",
                "test_an_image_in_a_store_that_hangs_is_answered_with_503",
            ],
        ),
    ],
    "integration/gateway/test_litellm.py": [
        Long("it needs litellm, a hundred packages; test_openai.py has another client", [EVERY]),
    ],
    "integration/gateway/test_pixels.py": [
        Long(
            "tests/integration/test_end_to_end.py judges the same model without a gateway", [EVERY]
        ),
    ],
    "integration/gateway/test_job_watcher.py": [
        Long(
            "test_a_watch_goes_on_after_redis_was_restarted",
            ["test_a_watch_goes_on_after_a_failover"],
        ),
    ],
}
