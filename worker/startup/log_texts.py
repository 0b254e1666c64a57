"""What the log of a worker says of its engine and of its jobs. Nothing is logged here."""

from collections.abc import Sequence

from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.contract.interface import Engine, ModelInfo
from imagefleet.worker.jobs.attempt import Attempt


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
