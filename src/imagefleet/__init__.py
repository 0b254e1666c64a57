"""Turn very many text prompts into images on a fleet of TPU hosts, and never lose one.

    from imagefleet import Client

Importing this package loads no module of it: each name below is loaded at its first use, so that a
worker does not pay for the client, nor a producer for the worker. `imagefleet.producer`,
`imagefleet.shared` and `imagefleet.worker` are the packages behind it.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from imagefleet.producer.async_client import AsyncClient, AsyncJob
    from imagefleet.producer.bulk.run import BulkRun
    from imagefleet.producer.client import Client, Job
    from imagefleet.shared.errors import (
        BrokerUnavailable,
        CallbackRefused,
        CheckpointError,
        ConfigurationError,
        DeviceError,
        ImagefleetError,
        InputUnavailable,
        InvalidInput,
        InvalidRequest,
        JobCancelled,
        JobFailed,
        LeaseLost,
        MessageRejected,
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
        WorkerError,
    )
    from imagefleet.shared.jobs.model import (
        CallbackEvent,
        ImageFormat,
        ImageResult,
        JobError,
        JobRequest,
        JobResult,
        JobStatus,
        State,
    )
    from imagefleet.shared.webhooks.signature import InvalidSignature
    from imagefleet.shared.webhooks.signature import verify as verify_webhook

    __version__: str

_ERRORS: Final = "imagefleet.shared.errors"
_JOBS: Final = "imagefleet.shared.jobs.model"

_HOMES: Final = {
    "AsyncClient": "imagefleet.producer.async_client",
    "AsyncJob": "imagefleet.producer.async_client",
    "BrokerUnavailable": _ERRORS,
    "BulkRun": "imagefleet.producer.bulk.run",
    "CallbackEvent": _JOBS,
    "CallbackRefused": _ERRORS,
    "CheckpointError": _ERRORS,
    "Client": "imagefleet.producer.client",
    "ConfigurationError": _ERRORS,
    "DeviceError": _ERRORS,
    "ImageFormat": _JOBS,
    "ImageResult": _JOBS,
    "ImagefleetError": _ERRORS,
    "InputUnavailable": _ERRORS,
    "InvalidInput": _ERRORS,
    "InvalidRequest": _ERRORS,
    "InvalidSignature": "imagefleet.shared.webhooks.signature",
    "Job": "imagefleet.producer.client",
    "JobCancelled": _ERRORS,
    "JobError": _JOBS,
    "JobFailed": _ERRORS,
    "JobRequest": _JOBS,
    "JobResult": _JOBS,
    "JobStatus": _JOBS,
    "LeaseLost": _ERRORS,
    "MessageRejected": _ERRORS,
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
    "WorkerError": _ERRORS,
    "verify_webhook": "imagefleet.shared.webhooks.signature",
}
"""Each public name and the module that defines it."""

_RENAMED: Final = {"verify_webhook": "verify"}
"""Public names that differ from the name in their module."""

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BrokerUnavailable",
    "BulkRun",
    "CallbackEvent",
    "CallbackRefused",
    "CheckpointError",
    "Client",
    "ConfigurationError",
    "DeviceError",
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
    "JobFailed",
    "JobRequest",
    "JobResult",
    "JobStatus",
    "LeaseLost",
    "MessageRejected",
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
    "WorkerError",
    "__version__",
    "verify_webhook",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name == "__version__":
        found: object = metadata.version("imagefleet")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), _RENAMED.get(name, name))
    else:
        raise AttributeError(f"module 'imagefleet' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
