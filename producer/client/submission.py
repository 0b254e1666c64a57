"""Turn what a caller submits, prompts or mappings of parameters, into job requests.

The errors name the entry, the field, the value and the limit. This module does not use Redis.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from imagefleet.producer.connection.input_images import (
    NOT_YET_UPLOADED,
    InputImageUploader,
)
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.model import check_job_id, new_job_id
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.request import JobRequest


def without_missing(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without those that are None, which count as absent. A `prompt` stays,
    so that the error names it."""
    return {n: value for n, value in parameters.items() if value is not None or n == "prompt"}


class EntryParser:
    """The parser turns the entries of one call into ids and requests."""

    def __init__(
        self, common: Mapping[str, Any], uploader: InputImageUploader, *, several: bool = True
    ) -> None:
        """Take the parameters of all entries. Their images are uploaded once for each model.

        Args:
            several: whether errors name the entry.

        Raises:
            InvalidRequest: `common` holds an id.
        """
        if several and common.get("id") is not None:
            raise InvalidRequest(
                "id", common["id"], "names one job; for several give each entry an id of its own"
            )
        self._common = without_missing(common)
        self._common_keys: dict[tuple[str, str | None], str] = {}
        """Uploaded images of `common` have these keys, by field and model."""
        self._required: set[tuple[str, str | None]] = set()
        """Texts that were found to be keys, by model."""
        self._uploader = uploader
        self._several = several

    def parse(
        self,
        entries: Iterable[tuple[int, object]],
        offers: dict[str, Offer],
        new_id: Callable[[], str] = new_job_id,
    ) -> list[tuple[str, JobRequest]]:
        """Return the id and the request of each entry, which comes with its number. Entries without
        an id get one from `new_id`.

        Images are uploaded only after all other parameters of all entries were found valid.

        Raises:
            InvalidRequest: an entry is wrong; the error names the first one.
            ConfigurationError, StorageDenied, StorageUnavailable: an image cannot be uploaded.
        """
        parsed = []
        for number, entry in entries:
            with self._name_entry(number):
                parsed.append((number, *self._parse_entry(entry, offers, new_id)))
        requests = []
        for number, job_id, request, images in parsed:
            with self._name_entry(number):
                requests.append((job_id, self._upload(request, images)))
        return requests

    @contextmanager
    def name_entry_of_id(self, numbers: Iterable[int], job_ids: Iterable[str]) -> Iterator[None]:
        """Add the number of the entry to an error about an id. Of two with one id it is the last.

        Args:
            numbers: those of the entries, in the order of `job_ids`.
        """
        try:
            yield
        except InvalidRequest as error:
            entry = dict(zip(job_ids, numbers, strict=True)).get(str(error.value))
            if not self._several or error.field != "id" or entry is None:
                raise
            raise InvalidRequest(error.field, error.value, error.limit, entry) from None

    @contextmanager
    def _name_entry(self, number: int) -> Iterator[None]:
        try:
            yield
        except InvalidRequest as error:
            if not self._several:
                raise
            raise InvalidRequest(error.field, error.value, error.limit, number) from None

    def _parse_entry(
        self, entry: object, offers: dict[str, Offer], new_id: Callable[[], str]
    ) -> tuple[str, JobRequest, dict[str, object]]:
        """Return the id, the request, and the images that it lacks because they are no texts."""
        parameters = self._merge(entry)
        job_id = parameters.pop("id", None)
        images = {
            field: parameters[field]
            for field in INPUT_FIELDS
            if not isinstance(parameters.get(field, ""), str)
        }
        request = JobRequest.parse({**parameters, **dict.fromkeys(images, NOT_YET_UPLOADED)})
        admit(request, offers)
        self._require_objects(request, images)
        return (new_id() if job_id is None else check_job_id(job_id)), request, images

    def _require_objects(self, request: JobRequest, images: Mapping[str, object]) -> None:
        """Check the inputs of a job that are texts, each text once."""
        for field in INPUT_FIELDS:
            text, model = getattr(request, field), request.model
            if text is None or field in images or (text, model) in self._required:
                continue
            self._uploader.require_object(field, text, model)
            self._required.add((text, model))

    def _merge(self, entry: object) -> dict[str, Any]:
        """Return the parameters of one job. A None counts as absent, except for the prompt. So it
        does not replace a parameter that all jobs have."""
        if isinstance(entry, str):
            own: Mapping[str, Any] = {"prompt": entry}
        elif isinstance(entry, Mapping):
            own = entry
        else:
            raise InvalidRequest("prompt", entry, "must be a prompt, or a mapping of parameters")
        return {**self._common, **without_missing(own)}

    def _upload(self, request: JobRequest, images: Mapping[str, object]) -> JobRequest:
        """Return the request with the keys of its images, which are in the store then."""
        keys: dict[str, str] = {}
        for field, image in images.items():
            if image is not self._common.get(field):
                keys[field] = self._uploader.upload(field, image, request.model)
                continue
            place = field, request.model
            if place not in self._common_keys:
                self._common_keys[place] = self._uploader.upload(field, image, request.model)
            keys[field] = self._common_keys[place]
        return request.model_copy(update=keys)
