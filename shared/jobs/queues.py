"""Name the queues: one per compile key and tenant, so that a claim need not open messages.

A compile key is what jobs must have in common to share a batch: model and shape.
Priority levels are separate Redis lists with the suffix that kombu gives them, so every Celery tool
that counts or purges queues works on ours too.
"""

from collections.abc import Collection

from imagefleet.shared.jobs.add_ons import chosen_add_ons
from imagefleet.shared.jobs.request import JobRequest

DEFAULT_MODEL = "default"
NATIVE_SHAPE = "native"
PRIORITY_STEPS = (0, 3, 6, 9)
"""The default of kombu's `priority_steps`; 0 is served first."""
_SEPARATOR = "\x06\x16"
"""It is kombu's default `sep` between queue and priority."""
_TENANT_SEPARATOR = "@"
"""It occurs in no name of a model, shape, add-on or tenant."""
_ADD_ON_SEPARATOR = "&"
"""It occurs in none of these names either."""


def queue_name(
    namespace: str,
    model: str | None,
    height: int | None,
    width: int | None,
    tenant: str | None = None,
) -> str:
    """Return a queue's name.

    Examples: `imagefleet.default.native`, `imagefleet.shapes.64x64@gold`.
    """
    shape = NATIVE_SHAPE if height is None or width is None else f"{height}x{width}"
    name = f"{namespace}.{model or DEFAULT_MODEL}.{shape}"
    return name if tenant is None else f"{name}{_TENANT_SEPARATOR}{tenant}"


def queue_of(namespace: str, request: JobRequest, *, by_compile_key: bool = True) -> str:
    """Return the queue of a job's compile key and tenant.

    With `by_compile_key=False` the shape is left out: every worker of the job's model reads the
    queue, or every worker if the job names no model.
    """
    if not by_compile_key:
        return queue_name(namespace, request.model, None, None, request.tenant)
    return queue_name(namespace, request.model, request.height, request.width, request.tenant)


def queue_of_compile_key(queue: str) -> str:
    """Return the queue of the same compile key for jobs without a tenant and without add-ons."""
    return queue.partition(_TENANT_SEPARATOR)[0].partition(_ADD_ON_SEPARATOR)[0]


def tenant_of(queue: str) -> str | None:
    """Return the tenant whose jobs `queue` holds; None if they have none."""
    return queue.partition(_TENANT_SEPARATOR)[2] or None


def list_for_add_ons(key: str, names: Collection[str]) -> str:
    """Return the Redis list for those messages of the list `key` that need these add-ons.

    Workers that lack one of them do not serve its queue.

    Example: `imagefleet.shapes.64x64@gold` becomes `imagefleet.shapes.64x64&detail&style@gold`.
    """
    queue, *step = key.split(_SEPARATOR, 1)
    shape, *tenant = queue.split(_TENANT_SEPARATOR, 1)
    with_names = _ADD_ON_SEPARATOR.join([queue_of_compile_key(shape), *sorted(names)])
    return _SEPARATOR.join([_TENANT_SEPARATOR.join([with_names, *tenant]), *step])


def list_key(queue: str, priority: int) -> str:
    """Return the key of the Redis list that holds `queue` at this priority (0 to 9)."""
    step = max(step for step in PRIORITY_STEPS if step <= priority)
    return f"{queue}{_SEPARATOR}{step}" if step else queue


def queue_of_list(key: str) -> str:
    """Return the queue whose messages of one priority are in the Redis list `key`."""
    return key.partition(_SEPARATOR)[0]


def lists_of(namespace: str, request: JobRequest) -> list[str]:
    """Return the keys of the Redis lists in which a job may wait at its priority level.

    Which one it is depends on what workers had announced when it was submitted.
    """
    queues = [queue_of(namespace, request, by_compile_key=each) for each in (True, False)]
    keys = [list_key(queue, request.priority) for queue in dict.fromkeys(queues)]
    names = chosen_add_ons(request)
    return keys + ([list_for_add_ons(key, names) for key in keys] if names else [])
