"""Read the images of jobs for callers, and name them by addresses of the gateway."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.jobs.addresses import ImageAddresses
from imagefleet.producer.gateway.jobs.tenant_jobs import TenantJobs
from imagefleet.producer.gateway.problems import Problem, unknown
from imagefleet.producer.gateway.threads import Threads
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.prediction import file_of
from imagefleet.shared.jobs.result import ImageResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.storage.job_keys import metadata_key

T = TypeVar("T")
_METADATA_S: Final = 2.0
"""A job is shown without what its store says if the store takes longer."""
_MAX_METADATA_BYTES: Final = 1 << 20
CONTENT_TYPES: Final = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "safetensors": "application/octet-stream",
}


class JobImages:
    """The images of all jobs of a fleet, each for who may see it."""

    def __init__(
        self,
        jobs: TenantJobs,
        addresses: ImageAddresses,
        store_threads: Threads,
        connection: Connection,
    ) -> None:
        self._jobs = jobs
        self._addresses = addresses
        self._store_threads = store_threads
        self._connection = connection

    async def read(self, image: ImageResult) -> bytes:
        """Return the file of an image. Raises what `ImageResult.read` raises."""
        return await self._store_threads.run(image.read)

    async def read_base64(self, image: ImageResult) -> bytes:
        """Return the file of an image in base64. Raises what `ImageResult.read` raises."""
        return await self.make(image, base64.b64encode)

    async def make(self, image: ImageResult, function: Callable[[bytes], T]) -> T:
        """Return what a function makes of the file of an image, in a thread."""
        return await self._store_threads.run(lambda: function(image.read()))

    async def metadata(self, status: JobStatus) -> dict[str, Any]:
        """Return what the store keeps beside the first image of a job: all parameters as used.

        It is empty if there is none, it cannot be read, or the store does not answer in time.
        """
        if status.result is None or not status.result.images:
            return {}
        image = status.result.images[0]
        with suppress(TimeoutError):
            async with asyncio.timeout(_METADATA_S):
                return await self._store_threads.run(self._read_metadata, status.id, image)
        return {}

    def _read_metadata(self, job_id: str, image: ImageResult) -> dict[str, Any]:
        try:
            store = self._connection.store_of(image.url.removesuffix(image.key))
            found = json.loads(store.get(metadata_key(job_id, image.index), _MAX_METADATA_BYTES))
        except (KeyError, ValueError, RecursionError, ImagefleetError):
            return {}
        return found if isinstance(found, dict) else {}

    def address(self, base_url: str, status: JobStatus, image: ImageResult) -> str:
        """Return an address from which anybody can read an image for a while.

        Args:
            base_url: that of the gateway, without a slash at its end.
        """
        return base_url + self._addresses.sign(status.id, file_of(image))

    async def find(self, caller: Caller, name: str, file: str) -> ImageResult:
        """Return an image of a job of the caller. Raises Problem (404)."""
        return _find(await self._jobs.status(caller, name), file)

    async def find_signed(
        self, job_id: str, file: str, expires: str, signature: str
    ) -> ImageResult:
        """Return the image of a signed address.

        Args:
            job_id: the stored id.

        Raises:
            Problem: 403 if the address was not signed by a gateway of this fleet, or has expired.
        """
        if not self._addresses.is_valid(job_id, file, expires, signature):
            message = "the signature of this address is wrong, or it has expired"
            raise Problem(403, "wrong_signature", message)
        return _find(await self._jobs.stored_status(job_id), file)


def _find(status: JobStatus, file: str) -> ImageResult:
    for image in status.result.images if status.result is not None else ():
        if file_of(image) == file:
            return image
    raise unknown("image", file)
