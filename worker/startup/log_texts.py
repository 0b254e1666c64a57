"""What the log of a worker says of its engine, its jobs and its callbacks."""

from collections.abc import Sequence
from typing import Final

import redis

from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.text.printable import counted
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.engine.contract.interface import Engine, ModelInfo
from imagefleet.worker.jobs.attempt import Attempt

_COUNT_S: Final = 1.0
"""Seconds that all lanes together have to count their callbacks."""


def describe_engine(engine: Engine) -> str:
    """Describe the model, the images of a batch and the shapes."""
    info: ModelInfo = engine.info
    shapes = ", ".join(str(shape) for shape in info.shapes)
    return f"model {info.name}, {counted(engine.capacity, 'image')} per batch, shapes {shapes}"


def describe_jobs(attempts: Sequence[Attempt], others: int = 0) -> str:
    """Describe jobs and their images. `others`: messages of shards, and of jobs not started."""
    images = sum(len(attempt.specs) for attempt in attempts)
    jobs = f"{counted(len(attempts), 'job')} with {counted(images, 'image')}"
    return f"{jobs} and {counted(others, 'other message')}" if others else jobs


def describe_callbacks(outboxes: Sequence[Outbox]) -> str:
    """Describe how many callbacks the outboxes of all lanes still have to send."""
    asks = {number: outbox.count_waiting for number, outbox in enumerate(outboxes)}
    try:
        counts = ask_at_once(asks, len(asks), _COUNT_S, "its callbacks are not counted")
    except redis.RedisError as error:
        return f"unknown, because Redis failed: {error}"
    known = str(sum(counts.values()))
    return known if len(counts) == len(asks) else f"{known} in the lanes that answer"
