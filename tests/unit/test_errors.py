"""Every error has its own code, says whether it is retryable, and can be pickled."""

import pickle
from collections.abc import Iterator

from imagefleet.shared import errors
from imagefleet.shared.errors import ImagefleetError, InvalidRequest, JobFailed
from imagefleet.shared.jobs.model import JobError


def _tree(root: type[ImagefleetError] = ImagefleetError) -> Iterator[type[ImagefleetError]]:
    yield root
    for subclass in root.__subclasses__():
        yield from _tree(subclass)


def test_every_error_has_its_own_code() -> None:
    codes = [error.code for error in _tree()]
    assert len(codes) == len(set(codes))


def test_the_drawing_names_every_error() -> None:
    drawing = errors.__doc__ or ""
    assert all(error.__name__ in drawing for error in _tree())


def test_only_errors_that_may_be_temporary_are_retryable() -> None:
    retryable = {error.code for error in _tree() if error.retryable}
    assert retryable == {
        "broker_unavailable",
        "checkpoint_unavailable",
        "queue_full",
        "tenant_limit",
        "storage_unavailable",
        "device_error",
        "worker_error",
        "input_unavailable",
        "result_timeout",
    }


def test_errors_with_fields_keep_them_when_pickled() -> None:
    refused = pickle.loads(pickle.dumps(InvalidRequest("seed", -1, "must be positive")))
    assert (refused.field, refused.value, str(refused)) == ("seed", -1, "seed=-1: must be positive")
    failed = pickle.loads(pickle.dumps(JobFailed("no luck", "device_error")))
    assert (str(failed), failed.failure_code) == ("no luck", "device_error")


def test_an_error_about_a_hostile_field_is_short() -> None:
    assert len(str(InvalidRequest("f" * 10_000, "v" * 10_000, "l" * 10_000))) < 1_300
    assert len(JobError(code="x", message="m" * 10_000).message) == 2_000
