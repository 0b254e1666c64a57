"""Paint something once more as an ordinary job, and read its pictures from the fleet's store."""

from typing import Final

from imagefleet.producer.client import Client
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.storage import open_store

_TIMEOUT_S: Final = 600.0


def painted_again(client: Client, request: JobRequest) -> list[bytes]:
    """The picture files of `request`. Raises what the job's failure raises."""
    job = client.submit(**request.model_dump(exclude_none=True, exclude={"callback_events"}))
    images = job.result(timeout=_TIMEOUT_S).images
    return [_read(image.url) for image in images]


def _read(url: str) -> bytes:
    root, _, name = url.rpartition("/")
    return open_store(f"{root}/").get(name)
