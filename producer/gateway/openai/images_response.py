"""Write images as the OpenAI Images API does.

https://github.com/openai/openai-openapi, `ImagesResponse`, `ImageGenStreamEvent` and
`ImageEditStreamEvent`.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from imagefleet.producer.client.job import result_or_raise
from imagefleet.producer.gateway.jobs.images import JobImages
from imagefleet.producer.gateway.openai.errors import error_body
from imagefleet.producer.gateway.problems import Problem, stopping
from imagefleet.producer.gateway.web.events import event
from imagefleet.producer.gateway.web.held_bytes import HeldBytes
from imagefleet.producer.gateway.web.image_json import Base64, bytes_in_base64
from imagefleet.shared.jobs.result import ImageResult, JobResult
from imagefleet.shared.jobs.status import JobStatus

_NO_USAGE: Final = {
    "input_tokens": 0,
    "output_tokens": 0,
    "total_tokens": 0,
    "input_tokens_details": {"text_tokens": 0, "image_tokens": 0},
}
"""The last event must have it. No tokens are counted here."""
_COPIES_IN_EVENTS: Final = 6
"""An event holds an image as file, as base64, and several times within texts."""


@dataclass(frozen=True, kw_only=True)
class ImagesAnswer:
    """This class writes the answer to one request."""

    images: JobImages
    name: str
    """The id of the job, as the caller knows it."""
    base_url: str
    as_urls: bool
    kind: str
    """`image_generation` or `image_edit`: what the names of events begin with."""
    partial_images: int
    held: HeldBytes
    """The memory of the answer is taken from it."""

    async def body(self, status: JobStatus) -> dict[str, Any]:
        """Return the images of a job that has ended, for `image_json`.

        Raises JobFailed, JobCancelled, InvalidInput, StorageUnavailable, Problem.
        """
        images = self._result(status).images
        if not self.as_urls:
            await self.held.take_for_answer(bytes_in_base64(images))
        return {
            "created": int(status.finished_at or status.submitted_at),
            "background": "opaque",
            **_looks(images),
            "data": [await self._item(status, image) for image in images],
            "id": self.name,
        }

    def _result(self, status: JobStatus) -> JobResult:
        """Return the result. Errors name the job as the caller knows it."""
        return result_or_raise(status.model_copy(update={"id": self.name}))

    async def _item(self, status: JobStatus, image: ImageResult) -> dict[str, Any]:
        if self.as_urls:
            url = self.images.address(self.base_url, status, image)
            return {"url": url, "seed": image.seed}
        return {"b64_json": Base64(await self.images.read_base64(image)), "seed": image.seed}

    async def events(self, statuses: AsyncIterator[JobStatus]) -> AsyncGenerator[str]:
        """Yield the events of a stream: previews, then each image.

        Raises what `body` and the statuses raise, and Problem if the gateway ends before the job.
        """
        sent, shown, status = 0, None, None
        async for status in statuses:
            if status.preview and status.preview != shown and sent < self.partial_images:
                shown = status.preview
                yield self._partial_event(status, sent)
                sent += 1
        if status is None or not status.done:
            raise stopping()
        for image in self._result(status).images:
            await self.held.take_for_answer(image.size * _COPIES_IN_EVENTS)
            yield await self._completed_event(status, image)
            self.held.release()

    def _partial_event(self, status: JobStatus, index: int) -> str:
        head, _, content = (status.preview or "").partition(",")
        kind = f"{self.kind}.partial_image"
        looks = {"output_format": head.partition("/")[2].partition(";")[0]}
        fields = self._fields(kind, status, content, looks)
        return event(kind, fields | {"partial_image_index": index})

    async def _completed_event(self, status: JobStatus, image: ImageResult) -> str:
        kind = f"{self.kind}.completed"
        content = (await self.images.read_base64(image)).decode()
        fields = self._fields(kind, status, content, _looks([image]))
        return event(kind, fields | {"usage": _NO_USAGE, "seed": image.seed})

    def _fields(
        self, kind: str, status: JobStatus, content: str, looks: dict[str, str]
    ) -> dict[str, Any]:
        return {
            "type": kind,
            "b64_json": content,
            "created_at": int(status.finished_at or status.submitted_at),
            "background": "opaque",
            "quality": "auto",
            "size": "auto",
            **looks,
            "id": self.name,
        }


def _looks(images: "tuple[ImageResult, ...] | list[ImageResult]") -> dict[str, str]:
    if not images:
        return {}
    return {"output_format": images[0].format, "size": f"{images[0].width}x{images[0].height}"}


def last_event(problem: Problem) -> str:
    """Return the event that says why a stream ends."""
    return event("error", {"type": "error", **error_body(problem)})
