"""Producers push prompt jobs to the fleet: `from producer import Client`."""

from producer.aio import AsyncClient, AsyncJob
from producer.client import Client, Job
from shared.errors import (
    BrokerUnavailable,
    ImagefleetError,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    ResultTimeout,
    UnknownJob,
)
from shared.jobs import JobResult, JobStatus, State

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BrokerUnavailable",
    "Client",
    "ImagefleetError",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobResult",
    "JobStatus",
    "ResultTimeout",
    "State",
    "UnknownJob",
]
