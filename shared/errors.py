"""All errors that imagefleet raises on purpose are in one tree, except `InvalidSignature`.

    ImagefleetError
    ├── InvalidRequest        an argument is refused; names field, value and limit
    ├── UnknownJob            no record has this job id
    ├── UnreadableRecord      the record of this job cannot be read
    ├── UnknownRun            no bulk run has this name or destination
    ├── PlanConflict          the destination holds the plan of another dataset
    ├── PlanDamaged           the plan in the destination cannot be used
    ├── JobFailed             the job ended in state "failed"; has the code of its error
    ├── JobCancelled          the job ended in state "cancelled"
    ├── JobExpired            the job was not started within its `ttl`
    ├── ResultTimeout         the time to wait is over; the job goes on
    ├── ConfigurationError    a setting, an address or an installed extra is missing or wrong
    │   └── TooLittleMemory   the model, its batch and its shapes do not fit this host
    ├── CheckpointError       the model's checkpoint is missing, damaged or of another family
    │   └── CheckpointUnavailable   the Hugging Face Hub cannot be reached, or fails for now
    ├── MessageRejected       a queue message is broken, or of a version that is not supported
    │   └── NewerMessage      a queue message has a newer version, which newer workers can read
    ├── CallbackRefused       a callback address is not allowed
    ├── InvalidInput          an init image does not exist or cannot be read
    ├── InputUnavailable      an init image cannot be fetched now
    ├── TooManyDeliveries     the workers that ran the job died too often
    ├── LeaseLost             the job does not belong to this attempt any more
    ├── BrokerUnavailable     Redis cannot be reached, or refuses commands
    ├── QueueFull             as many jobs wait as are allowed
    │   └── TenantLimit       as many jobs of this tenant wait as are allowed
    ├── StorageUnavailable    the object store cannot be reached, or fails for now
    ├── StorageDenied         the object store refuses the request
    ├── DeviceError           the devices or their runtime failed
    └── WorkerError           the worker failed in an unexpected way

`code` is stable: it is stored in records and sent in callbacks and logs. `retryable` says whether
the same work may succeed if it is tried again without a change.
"""

from typing import ClassVar

from imagefleet.shared.text.printable import printable


class ImagefleetError(Exception):
    """The base of the tree. `str(error)` says what is wrong and what to do."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    max_retries: ClassVar[int | None] = None
    """A limit of its own, where more retries are of no use. None: the limit of the fleet."""


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # nested too deeply, or an object whose own `__repr__` fails
        return f"<{type(value).__name__}>"
    if len(shown) <= 80:
        return shown
    length = len(value) if isinstance(value, str) else len(shown)
    return f"{shown[:60]}… ({length} characters)"


class InvalidRequest(ImagefleetError):
    """A parameter of a job or of a dataset, or an argument of a call, is refused. It is never valid
    on a retry.

    `field` and `value` name what is wrong, `limit` says what is allowed. `entry` is the number of
    the job among those that were submitted together, from 0; None if there was only one.
    """

    code = "invalid_request"

    def __init__(self, field: str, value: object, limit: str, entry: int | None = None) -> None:
        self.field, self.value, self.limit, self.entry = field, value, limit, entry
        where = "" if entry is None else f"entry {entry}: "
        shown = _shown(value)
        super().__init__(f"{where}{printable(field, 80)}={shown}: {printable(limit)}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str, int | None]]:
        return type(self), (self.field, self.value, self.limit, self.entry)


class UnknownJob(ImagefleetError):
    """No record has this job id: it was never submitted here, was deleted, or its record
    expired."""

    code = "unknown_job"


class UnreadableRecord(ImagefleetError):
    """The record of this job cannot be read: it is damaged, or a newer release has written it."""

    code = "unreadable_record"


class UnknownRun(ImagefleetError):
    """There is no plan in this destination, and no record of this bulk run."""

    code = "unknown_run"


class PlanConflict(ImagefleetError):
    """The destination holds the plan of another dataset. Nothing there was changed."""

    code = "plan_conflict"


class PlanDamaged(ImagefleetError):
    """The plan, or a shard's file of rows, differs from what was written."""

    code = "plan_damaged"


class JobFailed(ImagefleetError):
    """The job ended in state `failed`. `failure_code` is the code of its error."""

    code = "job_failed"

    def __init__(self, message: str, failure_code: str = "error") -> None:
        self.failure_code = failure_code
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.failure_code)


class JobCancelled(ImagefleetError):
    """The job was cancelled before it finished."""

    code = "job_cancelled"


class JobExpired(ImagefleetError):
    """No worker started the job within its `ttl`, so it is not wanted any more."""

    code = "expired"


class ResultTimeout(ImagefleetError, TimeoutError):
    """The job did not end within the time to wait. It goes on, and one may wait again."""

    code = "result_timeout"
    retryable = True


class ConfigurationError(ImagefleetError):
    """A setting, an address or an installed extra is missing or wrong.

    Workers raise it at their start, never at the first job; a client at the call that needs it.
    """

    code = "configuration_error"


class TooLittleMemory(ConfigurationError):
    """The model with this batch and these shapes does not fit. The message says how much memory
    is needed and how much there is."""

    code = "too_little_memory"


class CheckpointError(ImagefleetError):
    """The checkpoint cannot be used."""

    code = "checkpoint_error"


class CheckpointUnavailable(CheckpointError):
    """The checkpoint cannot be downloaded now. The same start may succeed later."""

    code = "checkpoint_unavailable"
    retryable = True


class MessageRejected(ImagefleetError):
    """A message on the queue cannot be read as a job."""

    code = "message_rejected"


class NewerMessage(MessageRejected):
    """A message on the queue has a newer version than this worker reads. A newer worker may."""

    code = "newer_message"


class CallbackRefused(ImagefleetError):
    """A callback address is not allowed: it is inside the network, or not http(s)."""

    code = "callback_refused"


class InvalidInput(ImagefleetError):
    """An init image or mask, or the image of a result, does not exist or cannot be read."""

    code = "invalid_input"


class InputUnavailable(ImagefleetError):
    """An init image or mask cannot be fetched now. A later attempt may succeed."""

    code = "input_unavailable"
    retryable = True


class TooManyDeliveries(ImagefleetError):
    """The job was delivered as often as is allowed, and every worker died with it."""

    code = "too_many_deliveries"


class LeaseLost(ImagefleetError):
    """This attempt does not hold the job any more, so its result must not be recorded."""

    code = "lease_lost"


class BrokerUnavailable(ImagefleetError, ConnectionError):
    """Redis cannot be reached, takes no writes, or refuses the credentials."""

    code = "broker_unavailable"
    retryable = True


class QueueFull(ImagefleetError):
    """As many jobs wait as the operators allow. Nothing was accepted; it may be later."""

    code = "queue_full"
    retryable = True


class TenantLimit(QueueFull):
    """As many jobs of this tenant wait as the operators allow."""

    code = "tenant_limit"


class StorageUnavailable(ImagefleetError, ConnectionError):
    """The object store cannot be reached or fails. The same request may succeed later."""

    code = "storage_unavailable"
    retryable = True


class StorageDenied(ImagefleetError):
    """The object store refuses: wrong credentials, no bucket, no rights, or a full disk."""

    code = "storage_denied"


class DeviceError(ImagefleetError):
    """The devices or their runtime failed.

    A job that ends with it is the probable cause: after it failed, the same devices generated a
    known image without error. It was retried twice, on other hosts if the fleet has any that can
    make it. A worker whose devices fail on the known image, too, or fail jobs that succeed
    elsewhere, requeues its jobs and takes no others.
    """

    code = "device_error"
    retryable = True
    max_retries = 2


class WorkerError(ImagefleetError):
    """The worker failed in an unexpected way. The cause may be its host or may pass."""

    code = "worker_error"
    retryable = True
