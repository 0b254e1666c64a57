"""Turn what a caller submits, prompts or mappings of parameters, into job requests.

The errors name the entry, the field, the value and the limit. This module knows no Redis.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from imagefleet.producer.input_images import IMAGE_FIELDS, InputImageUploader
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.model import check_job_id, new_job_id
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest


class EntryParser:
    """The parser turns the entries of one call into ids and requests."""

    def __init__(
        self, common: Mapping[str, Any], uploader: InputImageUploader, *, several: bool = True
    ) -> None:
        """Take the parameters of all entries. Their images are uploaded once.

        Args:
            several: whether errors name the entry.

        Raises:
            InvalidRequest: `common` holds an id, or an image that cannot be uploaded.
        """
        if several and common.get("id") is not None:
            raise InvalidRequest(
                "id", common["id"], "names one job; for several give each entry an id of its own"
            )
        self._common = _with_uploads(common, uploader)
        self._uploader = uploader
        self._several = several

    def parse(
        self, entries: Iterable[tuple[int, object]], offers: dict[str, Offer]
    ) -> list[tuple[str, JobRequest]]:
        """Return the id and the request of each entry, which comes with its number.

        Raises:
            InvalidRequest: an entry is wrong; the error names the first one.
        """
        return [self._parse_numbered(number, entry, offers) for number, entry in entries]

    def _parse_numbered(
        self, number: int, entry: object, offers: dict[str, Offer]
    ) -> tuple[str, JobRequest]:
        try:
            return self._parse_entry(entry, offers)
        except InvalidRequest as error:
            if not self._several:
                raise
            raise InvalidRequest(error.field, error.value, error.limit, number) from None

    def _parse_entry(self, entry: object, offers: dict[str, Offer]) -> tuple[str, JobRequest]:
        parameters = self._merge(entry)
        job_id = parameters.pop("id", None)
        request = JobRequest.parse(parameters)
        admit(request, offers)
        return (new_job_id() if job_id is None else check_job_id(job_id)), request

    def _merge(self, entry: object) -> dict[str, Any]:
        """Return the parameters of one job. A None counts as absent, except for the prompt."""
        if isinstance(entry, str):
            own: Mapping[str, Any] = {"prompt": entry}
        elif isinstance(entry, Mapping):
            own = _with_uploads(entry, self._uploader)
        else:
            raise InvalidRequest("prompt", entry, "must be a prompt, or a mapping of parameters")
        merged = {**self._common, **own}
        return {n: value for n, value in merged.items() if value is not None or n == "prompt"}


def _with_uploads(parameters: Mapping[str, Any], uploader: InputImageUploader) -> Mapping[str, Any]:
    """Return the parameters with the addresses of their images in place of their content."""
    given = [field for field in IMAGE_FIELDS if field in parameters]
    uploads = {field: uploader.address_of(field, parameters[field]) for field in given}
    return {**parameters, **uploads}
