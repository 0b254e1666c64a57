"""What only `make long` runs: tests that take long and of which shorter ones try the greater part.

A module's entry says for each test what `make test` has instead. A test that is not in the list is
in `make test`. `.ci/run` leaves those with `in_ci=False` to `make long`. pytest does not start if
the list names a test that does not exist.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.long_tests.of_datasets import OF_DATASETS
from tests.long_tests.of_gateway import OF_GATEWAY
from tests.long_tests.with_servers import WITH_SERVERS
from tests.long_tests.without_servers import ENGINE, OTHERS
from tests.support.mark_long import Long

LONG: Final[Mapping[str, Sequence[Long]]] = {
    **WITH_SERVERS,
    **OF_DATASETS,
    **OF_GATEWAY,
    **ENGINE,
    **OTHERS,
}
"""By module below `tests`: its long tests."""
