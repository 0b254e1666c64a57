"""Queue names. One queue a compile key, so that a claim never has to open a message.

A compile key is what must be equal for pictures to share one device program: model and shape.
Priority levels are separate Redis lists with the suffix kombu gives them, so every Celery tool
that counts or purges queues counts and purges ours.
"""

from shared.jobs import JobRequest

DEFAULT_MODEL = "default"
NATIVE_SHAPE = "native"
PRIORITY_STEPS = (0, 3, 6, 9)
"""kombu's default `priority_steps`; 0 is served first."""
_SEPARATOR = "\x06\x16"
"""kombu's default `sep` between queue and priority."""


def queue_name(namespace: str, model: str | None, height: int | None, width: int | None) -> str:
    """`imagefleet.default.native`, `imagefleet.shapes.64x64`"""
    shape = NATIVE_SHAPE if height is None or width is None else f"{height}x{width}"
    return f"{namespace}.{model or DEFAULT_MODEL}.{shape}"


def queue_of(namespace: str, request: JobRequest | None) -> str:
    """The queue of a job's compile key; without a request the one that every worker reads."""
    if request is None:
        return queue_name(namespace, None, None, None)
    return queue_name(namespace, request.model, request.height, request.width)


def list_key(queue: str, priority: int) -> str:
    """The Redis list behind `queue` at this priority (0..9)."""
    step = max(step for step in PRIORITY_STEPS if step <= priority)
    return f"{queue}{_SEPARATOR}{step}" if step else queue
