"""Make what Celery would store as the result of a task, and store the refusal of other tasks."""

from typing import Any, Final

from celery import Task, states
from celery.backends.base import DisabledBackend

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.jobs.message_end import CeleryResult, MessageEnd
from imagefleet.worker.queues.claims import Claims

_KEEP_REJECTION_S: Final = 86_400
"""At most so long is a refusal kept: anybody can write any number of messages to a queue."""


def message_end(task: Task, claims: Claims, tag: str) -> MessageEnd | None:
    """Return how the message of the running `task` can end with its job. None: Celery must end it,
    because it has a workflow to follow first."""
    request = task.request
    if request.callbacks or request.chain or request.chord or request.group:
        return None

    def store(result: dict[str, Any]) -> CeleryResult:
        return celery_result(task.backend, request.id, result, request)

    ignored = request.ignore_result or isinstance(task.backend, DisabledBackend)
    return MessageEnd(claims=claims, tag=tag, store=None if ignored else store)


def celery_result(
    backend: Any, task_id: str, result: dict[str, Any], request: Any = None
) -> CeleryResult:
    """Return the key and the text that Celery's backend for Redis writes for a success.

    Source: `BaseKeyValueStoreBackend._store_result` of Celery 5.7.
    """
    meta = backend._get_result_meta(result, states.SUCCESS, None, request)
    key = backend.get_key_for_task(task_id)
    return CeleryResult(
        key=key.decode() if isinstance(key, bytes) else key,
        text=backend.encode({**meta, "task_id": task_id}),
        keep_s=int(backend.expires or 0),
    )


def store_rejection(backend: Any, task_id: str, error: ImagefleetError) -> None:
    """Store that a task failed, so that `get()` does not wait for ever, unless something is stored
    under its id: then the id is of a task that another program runs."""
    meta = backend._get_result_meta(
        backend.prepare_exception(error, backend.serializer), states.FAILURE, None, None
    )
    key, text = backend.get_key_for_task(task_id), backend.encode({**meta, "task_id": task_id})
    keep_s = min(int(backend.expires or _KEEP_REJECTION_S), _KEEP_REJECTION_S)
    if backend.client.set(key, text, ex=keep_s, nx=True):
        backend.client.publish(key, text)
