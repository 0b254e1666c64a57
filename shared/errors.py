"""Every error imagefleet raises on purpose, in one tree.

    ImagefleetError
    ├── InvalidRequest        a field of a job is wrong; names field, value and limit
    ├── UnknownJob            no record of that job id
    ├── UnknownRun            no dataset of that name is known
    ├── PlanConflict          another dataset is planned in that destination
    ├── PlanDamaged           the plan in the destination cannot be used
    ├── JobFailed             the job ended in state "failed"; carries the stored code
    ├── JobCancelled          the job ended in state "cancelled"
    ├── ResultTimeout         waited long enough; the job goes on
    ├── ConfigurationError    a setting is wrong; nothing can start
    │   └── TooLittleMemory   the model, its batch and its shapes do not fit this host
    ├── CheckpointError       the model folder is missing, damaged or of another family
    ├── MessageRejected       a queue message is broken or of a version we do not speak
    ├── CallbackRefused       a callback address is not allowed
    ├── InvalidInput          a picture to start from is not there, or is none
    ├── InputUnavailable      a picture to start from cannot be fetched for now
    ├── TooManyDeliveries     a job took its worker down again and again
    ├── LeaseLost             another attempt owns the job now
    ├── BrokerUnavailable     Redis cannot be reached, or refuses us
    ├── QueueFull             as many jobs wait as are allowed to
    │   └── TenantLimit       of this tenant
    ├── StorageUnavailable    the object store cannot be reached, or fails for now
    ├── StorageDenied         the object store answered and will not let us
    ├── DeviceError           the accelerator failed on a batch
    └── WorkerError           the worker failed in a way nobody thought of

`code` is stable and travels in records, callbacks and logs. `retryable` answers one question:
may the same work succeed if it is simply tried again?
"""

from typing import ClassVar


class ImagefleetError(Exception):
    """Base of the tree. `str(error)` is one sentence that says what to do."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    most_retries: ClassVar[int | None] = None
    """Fewer than the fleet allows, where trying on is no use."""


class InvalidRequest(ImagefleetError):
    """A job's field is refused. Never becomes valid by trying again."""

    code = "invalid_request"

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field, self.value, self.limit = field, value, limit
        shown = repr(value)
        if len(shown) > 80:
            length = len(value) if isinstance(value, str) else len(shown)
            shown = f"{shown[:60]}… ({length} characters)"
        super().__init__(f"{field}={shown}: {limit}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.limit)


class UnknownJob(ImagefleetError):
    """No record of that id: never submitted here, or expired."""

    code = "unknown_job"


class UnknownRun(ImagefleetError):
    """No plan in that destination and no record of that run."""

    code = "unknown_run"


class PlanConflict(ImagefleetError):
    """The destination holds the plan of another dataset. It is left as it is."""

    code = "plan_conflict"


class PlanDamaged(ImagefleetError):
    """The plan, or a shard's file of rows, is not what was written."""

    code = "plan_damaged"


class JobFailed(ImagefleetError):
    """The job ended in state `failed`. `failure_code` is the code of what happened there."""

    code = "job_failed"

    def __init__(self, message: str, failure_code: str = "error") -> None:
        self.failure_code = failure_code
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.failure_code)


class JobCancelled(ImagefleetError):
    """The job was cancelled before it finished."""

    code = "job_cancelled"


class ResultTimeout(ImagefleetError, TimeoutError):
    """The wait ended, the job did not. Waiting again is fine."""

    code = "result_timeout"
    retryable = True


class ConfigurationError(ImagefleetError):
    """A setting is missing or wrong. Said at start, never at the first job."""

    code = "configuration_error"


class TooLittleMemory(ConfigurationError):
    """The model with this batch and these shapes does not fit. Says what it needs and what there
    is."""

    code = "too_little_memory"


class CheckpointError(ImagefleetError):
    """The checkpoint cannot be used. Lists every missing, unused and misshapen weight at once."""

    code = "checkpoint_error"


class MessageRejected(ImagefleetError):
    """A message on the queue cannot be read as a job."""

    code = "message_rejected"


class CallbackRefused(ImagefleetError):
    """A callback address points where we do not send: inside the network, or not http(s)."""

    code = "callback_refused"


class InvalidInput(ImagefleetError):
    """A picture that a job starts from is not there, may not be fetched, or cannot be read."""

    code = "invalid_input"


class InputUnavailable(ImagefleetError):
    """A picture that a job starts from cannot be fetched now; it may be there later."""

    code = "input_unavailable"
    retryable = True


class TooManyDeliveries(ImagefleetError):
    """The job was delivered to workers more often than allowed and none survived it."""

    code = "too_many_deliveries"


class LeaseLost(ImagefleetError):
    """This attempt no longer owns the job, so what it made must not be shown."""

    code = "lease_lost"


class BrokerUnavailable(ImagefleetError, ConnectionError):
    """Redis is unreachable, full, or refused the credentials."""

    code = "broker_unavailable"
    retryable = True


class QueueFull(ImagefleetError):
    """As many jobs wait as the fleet's operators allow. Nothing was accepted; later it may be."""

    code = "queue_full"
    retryable = True


class TenantLimit(QueueFull):
    """As many jobs of this tenant wait as it may have waiting."""

    code = "tenant_limit"


class StorageUnavailable(ImagefleetError, ConnectionError):
    """The object store is unreachable or failing; the same put may succeed later."""

    code = "storage_unavailable"
    retryable = True


class StorageDenied(ImagefleetError):
    """The object store refuses: credentials, missing bucket, no rights, full disk."""

    code = "storage_denied"


class DeviceError(ImagefleetError):
    """The accelerator or its runtime failed on a batch, and the job's prompt is to blame: the
    same devices paint a known picture well. Tried once more, with luck elsewhere."""

    code = "device_error"
    retryable = True
    most_retries = 1


class WorkerError(ImagefleetError):
    """The worker failed in a way nobody thought of. Its host, or the moment, may be to blame."""

    code = "worker_error"
    retryable = True
