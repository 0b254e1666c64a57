"""Write the jobs of a caller in JSON, in a form of our own: what a person wants to see of them.

Input: the status of a job. Output: an object for JSON. Times are Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.jobs.tenant_jobs import name_of
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.prediction import file_of, input_of
from imagefleet.shared.jobs.result import ImageResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.jobs.worker_names import host_of

_USED: Final = (
    *(name for name, row in PARAMETERS.items() if row.metadata in ("always", "if used")),
    *("strength", "image_guidance_scale"),
)
"""The parameters of all images of a job that the metadata of one tell as they were used."""


@dataclass(frozen=True, kw_only=True)
class JobShapes:
    """This class writes the jobs of one caller."""

    gateway: Gateway
    caller: Caller
    base_url: str
    """It is the gateway's, and has no slash at its end."""

    def job(
        self, status: JobStatus, *, starred: bool, metadata: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return a job.

        Args:
            metadata: what the store keeps beside its first image.
        """
        request, result, error = status.request, status.result, status.error
        are_deleted = status.images_deleted_at is not None
        images = result.images if result is not None and not are_deleted else ()
        return {
            "id": name_of(self.caller, status),
            "object": "job",
            "state": status.state.value,
            "model": request.model or (None if result is None else result.model),
            "created_at": _rounded(status.submitted_at),
            "started_at": _rounded(status.started_at),
            "ended_at": _rounded(status.finished_at),
            "seconds": _seconds(status),
            "progress": {"step": status.step, "steps": status.steps},
            "host": self._host(status),
            "retries": status.retries,
            "error": None if error is None else {"code": error.code, "message": error.message},
            "parameters": _parameters(status, metadata or {}),
            "inputs": [name for name in INPUT_FIELDS if getattr(request, name) is not None],
            "images": [self._image(status, each) for each in images],
            "images_kept_until": _rounded(status.images_kept_until),
            "images_deleted": are_deleted,
            "starred": starred,
        }

    def _host(self, status: JobStatus) -> str | None:
        """Return the host that runs the job, or ran it last, as far as the caller may know it."""
        if status.worker is None or not self.caller.may(Scope.OPERATE):
            return None
        return host_of(status.worker)

    def _image(self, status: JobStatus, image: ImageResult) -> dict[str, Any]:
        return {
            "url": self.gateway.images.address(self.base_url, status, image),
            "file": file_of(image),
            "width": image.width,
            "height": image.height,
            "format": image.format,
            "seed": image.seed,
            "index": image.index,
            "size": image.size,
            "nsfw": image.nsfw,
        }


def _parameters(status: JobStatus, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, and those that the model chose as far as they are
    known. The same may be sent again."""
    chosen = {name: metadata[name] for name in _USED if metadata.get(name) not in (None, "")}
    if status.result is not None and status.result.images:
        image = status.result.images[0]
        chosen |= {"width": image.width, "height": image.height}
    return {**chosen, **input_of(status.request)}


def _seconds(status: JobStatus) -> float | None:
    """Return how long a job has run; None before it has ended, or if it never ran."""
    if status.started_at is None or status.finished_at is None:
        return None
    return _rounded(status.finished_at - status.started_at)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
