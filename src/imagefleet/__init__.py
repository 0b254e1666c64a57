"""Turn very many text prompts into images on a fleet of TPU hosts, without losing a job.

    from imagefleet import Client

Importing this package loads none of its modules. Each public name below is loaded at its first use,
so that a worker does not load the client, nor a producer the worker. The code is in
`imagefleet.producer`, `imagefleet.shared` and `imagefleet.worker`.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from imagefleet.producer.bulk.async_run import AsyncBulkRun
    from imagefleet.producer.bulk.dry_run import DryRun
    from imagefleet.producer.bulk.run import BulkRun
    from imagefleet.producer.client.async_client import AsyncClient, AsyncJob
    from imagefleet.producer.client.client import Client
    from imagefleet.producer.client.job import Job
    from imagefleet.producer.client.parameters import JobParameters
    from imagefleet.shared.errors import (
        BrokerUnavailable,
        CallbackRefused,
        CheckpointError,
        CheckpointUnavailable,
        ConfigurationError,
        DeviceError,
        ImagefleetError,
        InputUnavailable,
        InvalidInput,
        InvalidRequest,
        JobCancelled,
        JobExpired,
        JobFailed,
        LeaseLost,
        MessageRejected,
        NewerMessage,
        PlanConflict,
        PlanDamaged,
        QueueFull,
        ResultTimeout,
        StorageDenied,
        StorageUnavailable,
        TenantLimit,
        TooLittleMemory,
        TooManyDeliveries,
        UnknownJob,
        UnknownRun,
        UnreadableRecord,
        WorkerError,
    )
    from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat, JobError, State
    from imagefleet.shared.jobs.request import JobRequest
    from imagefleet.shared.jobs.result import ImageResult, JobResult
    from imagefleet.shared.jobs.status import JobStatus
    from imagefleet.shared.webhooks.signature import InvalidSignature
    from imagefleet.shared.webhooks.signature import verify as verify_webhook

    __version__: str

_ERRORS: Final = "imagefleet.shared.errors"
_JOBS: Final = "imagefleet.shared.jobs.model"
_RESULT: Final = "imagefleet.shared.jobs.result"

_HOMES: Final = {
    "AsyncBulkRun": "imagefleet.producer.bulk.async_run",
    "AsyncClient": "imagefleet.producer.client.async_client",
    "AsyncJob": "imagefleet.producer.client.async_client",
    "BrokerUnavailable": _ERRORS,
    "BulkRun": "imagefleet.producer.bulk.run",
    "CallbackEvent": _JOBS,
    "CallbackRefused": _ERRORS,
    "CheckpointError": _ERRORS,
    "CheckpointUnavailable": _ERRORS,
    "Client": "imagefleet.producer.client.client",
    "ConfigurationError": _ERRORS,
    "DeviceError": _ERRORS,
    "DryRun": "imagefleet.producer.bulk.dry_run",
    "ImageFormat": _JOBS,
    "ImageResult": _RESULT,
    "ImagefleetError": _ERRORS,
    "InputUnavailable": _ERRORS,
    "InvalidInput": _ERRORS,
    "InvalidRequest": _ERRORS,
    "InvalidSignature": "imagefleet.shared.webhooks.signature",
    "Job": "imagefleet.producer.client.job",
    "JobCancelled": _ERRORS,
    "JobError": _JOBS,
    "JobExpired": _ERRORS,
    "JobFailed": _ERRORS,
    "JobParameters": "imagefleet.producer.client.parameters",
    "JobRequest": "imagefleet.shared.jobs.request",
    "JobResult": _RESULT,
    "JobStatus": "imagefleet.shared.jobs.status",
    "LeaseLost": _ERRORS,
    "MessageRejected": _ERRORS,
    "NewerMessage": _ERRORS,
    "PlanConflict": _ERRORS,
    "PlanDamaged": _ERRORS,
    "QueueFull": _ERRORS,
    "ResultTimeout": _ERRORS,
    "State": _JOBS,
    "StorageDenied": _ERRORS,
    "StorageUnavailable": _ERRORS,
    "TenantLimit": _ERRORS,
    "TooLittleMemory": _ERRORS,
    "TooManyDeliveries": _ERRORS,
    "UnknownJob": _ERRORS,
    "UnknownRun": _ERRORS,
    "UnreadableRecord": _ERRORS,
    "WorkerError": _ERRORS,
    "verify_webhook": "imagefleet.shared.webhooks.signature",
}
"""Each public name and the module that defines it."""

_ALIASES: Final = {"verify_webhook": "verify"}
"""Each public name that differs from the name in its module, and that name."""

__all__ = [
    "AsyncBulkRun",
    "AsyncClient",
    "AsyncJob",
    "BrokerUnavailable",
    "BulkRun",
    "CallbackEvent",
    "CallbackRefused",
    "CheckpointError",
    "CheckpointUnavailable",
    "Client",
    "ConfigurationError",
    "DeviceError",
    "DryRun",
    "ImageFormat",
    "ImageResult",
    "ImagefleetError",
    "InputUnavailable",
    "InvalidInput",
    "InvalidRequest",
    "InvalidSignature",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobParameters",
    "JobRequest",
    "JobResult",
    "JobStatus",
    "LeaseLost",
    "MessageRejected",
    "NewerMessage",
    "PlanConflict",
    "PlanDamaged",
    "QueueFull",
    "ResultTimeout",
    "State",
    "StorageDenied",
    "StorageUnavailable",
    "TenantLimit",
    "TooLittleMemory",
    "TooManyDeliveries",
    "UnknownJob",
    "UnknownRun",
    "UnreadableRecord",
    "WorkerError",
    "__version__",
    "verify_webhook",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name == "__version__":
        value: object = metadata.version("imagefleet")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), _ALIASES.get(name, name))
    else:
        raise AttributeError(f"module 'imagefleet' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the loaded and the public names."""
    return sorted({*globals(), *__all__})
