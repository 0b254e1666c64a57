"""Queue names. One queue a compile key and tenant, so that a claim never has to open a message.

A compile key is what must be equal for pictures to share one device program: model and shape.
Priority levels are separate Redis lists with the suffix kombu gives them, so every Celery tool
that counts or purges queues counts and purges ours.
"""

from imagefleet.shared.jobs.model import JobRequest

DEFAULT_MODEL = "default"
NATIVE_SHAPE = "native"
PRIORITY_STEPS = (0, 3, 6, 9)
"""kombu's default `priority_steps`; 0 is served first."""
_SEPARATOR = "\x06\x16"
"""kombu's default `sep` between queue and priority."""
_TENANT = "@"
"""Stands in no model, shape or tenant name."""


def queue_name(
    namespace: str,
    model: str | None,
    height: int | None,
    width: int | None,
    tenant: str | None = None,
) -> str:
    """`imagefleet.default.native`, `imagefleet.shapes.64x64`, `imagefleet.shapes.64x64@gold`"""
    shape = NATIVE_SHAPE if height is None or width is None else f"{height}x{width}"
    name = f"{namespace}.{model or DEFAULT_MODEL}.{shape}"
    return name if tenant is None else f"{name}{_TENANT}{tenant}"


def queue_of(namespace: str, request: JobRequest, *, sorted_by_key: bool = True) -> str:
    """The queue of a job's compile key and tenant; not `sorted_by_key` one that every worker reads,
    or every worker of the model it names."""
    if not sorted_by_key:
        return queue_name(namespace, request.model, None, None, request.tenant)
    return queue_name(namespace, request.model, request.height, request.width, request.tenant)


def without_tenant(queue: str) -> str:
    """The queue of the same compile key for jobs of nobody in particular."""
    return queue.partition(_TENANT)[0]


def tenant_of(queue: str) -> str | None:
    return queue.partition(_TENANT)[2] or None


def known_queues_key(namespace: str) -> str:
    """The set of queues that hold, or may hold, messages; see queue.lua."""
    return f"{namespace}:queues"


def later_key(namespace: str) -> str:
    """The sorted set of messages that wait outside their queues: list \\0 message by due time."""
    return f"{namespace}:later"


def leases_key(namespace: str) -> str:
    """The sorted set of living workers, by the time their lease ends."""
    return f"{namespace}:leases"


def claims_key(namespace: str, worker: str) -> str:
    """The hash of the messages in a worker's hands: tag to list \\0 message."""
    return f"{namespace}:claims:{worker}"


def list_key(queue: str, priority: int) -> str:
    """The Redis list behind `queue` at this priority (0..9)."""
    step = max(step for step in PRIORITY_STEPS if step <= priority)
    return f"{queue}{_SEPARATOR}{step}" if step else queue
