"""Every error has a code of its own, answers whether to retry, and survives pickling."""

import pickle
from collections.abc import Iterator

from imagefleet.shared import errors
from imagefleet.shared.errors import ImagefleetError, InvalidRequest, JobFailed


def _tree(root: type[ImagefleetError] = ImagefleetError) -> Iterator[type[ImagefleetError]]:
    yield root
    for branch in root.__subclasses__():
        yield from _tree(branch)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in _tree()]
    assert len(codes) == len(set(codes))


def test_the_drawing_names_every_error() -> None:
    drawing = errors.__doc__ or ""
    assert all(error.__name__ in drawing for error in _tree())


def test_only_what_may_pass_by_itself_is_retryable() -> None:
    retryable = {error.code for error in _tree() if error.retryable}
    assert retryable == {
        "broker_unavailable",
        "queue_full",
        "tenant_limit",
        "storage_unavailable",
        "device_error",
        "worker_error",
        "input_unavailable",
        "result_timeout",
    }


def test_errors_with_more_than_a_message_survive_a_process_border() -> None:
    refused = pickle.loads(pickle.dumps(InvalidRequest("seed", -1, "must be positive")))
    assert (refused.field, refused.value, str(refused)) == ("seed", -1, "seed=-1: must be positive")
    failed = pickle.loads(pickle.dumps(JobFailed("no luck", "device_error")))
    assert (str(failed), failed.failure_code) == ("no luck", "device_error")
