"""Fetch the images and latents that jobs start from, check them, and resize images to the shape.

Input: attempts. Output: the same attempts with the pixels or latents in their specs, or abandoned
with the reason. Fetching has threads of its own, so that the devices never wait for a web server.
"""

import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from imagefleet.shared.errors import (
    CallbackRefused,
    ImagefleetError,
    InputUnavailable,
    InvalidInput,
    InvalidRequest,
)
from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS, MAX_INPUT_BYTES
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import printable
from imagefleet.worker.devices.slots import InitInput
from imagefleet.worker.engine.contract.control_image import ControlImage
from imagefleet.worker.engine.contract.image_use import ImageLimits
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.latents_file import decode_latents, max_file_bytes
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents, LatentFormat
from imagefleet.worker.images.decode_image import decode_image
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.input_permits import FairPermits, ImageSource, image_source
from imagefleet.worker.outbound.address_policy import AllowList, resolve_allowed
from imagefleet.worker.outbound.http_request import REQUEST_ERRORS, send_http_request
from imagefleet.worker.process.log_format import log_fields

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 30.0
"""One image may take this many seconds, from the name server to the last byte."""
MAX_DECODING: Final = 2
"""At most this many files are decoded at once. One of the largest images takes 305 MB."""
_TRANSIENT_STATUSES: Final = (408, 425, 429)  # of HTTP, beside 5xx


class InputImages:
    """Fetches input images. Only the dispatcher calls `reserve_permit`, `start_fetch`, `pop_ready`
    and `pop_all`; any thread may call `fetch`."""

    def __init__(
        self,
        store: ObjectStore,
        allow: AllowList,
        *,
        default_strengths: DefaultStrengths = STABLE_DIFFUSION,
        image_limits: ImageLimits | None = None,
        latents: LatentFormat | None = None,
        timeout_s: float = _TIMEOUT_S,
        max_jobs: int = 64,
        max_fetches: int = 16,
    ) -> None:
        """
        Args:
            default_strengths, image_limits, latents: the model's. No latents: it takes none.
            max_jobs: jobs that may wait for their images, or have them fetched.
            max_fetches: jobs whose images are fetched at the same time.
        """
        self._store = store
        self._allow = allow
        self._default_strengths = default_strengths
        self._image_limits = image_limits
        self._latents = latents
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()
        self._decoding = threading.Semaphore(MAX_DECODING)
        # A resolver may still hang when the fetch that asked for it has ended.
        self._resolvers = ThreadPoolExecutor(2 * max_fetches, thread_name_prefix="resolve")
        self._fetchers = ThreadPoolExecutor(max_fetches, thread_name_prefix="input-images")
        self._permits: FairPermits[str] = FairPermits(max_jobs)
        self._fetching: FairPermits[Attempt] = FairPermits(max_fetches)
        self._lock = threading.Lock()
        self._pending: dict[Attempt, ImageSource] = {}
        self._not_started: list[Attempt] = []
        self._ready: list[Attempt] = []

    def reserve_permit(self, tag: str, source: ImageSource, is_held: Callable[[str], bool]) -> bool:
        """Reserve a permit for the job of claim `tag`, and return True, if there is one.

        The job keeps it until its images are there, or `is_held` says that its claim is released.
        """
        self._permits.release_unless(is_held)
        return self._permits.take(tag, source)

    def start_fetch(self, attempt: Attempt) -> None:
        """Fetch the input images of `attempt` when it is its turn. `pop_ready` returns it later."""
        source = image_source(attempt.request.model_dump())
        assert source is not None
        with self._lock:
            self._pending[attempt] = source
            self._not_started.append(attempt)
        self._start_fetches()

    def pop_ready(self) -> list[Attempt]:
        """Remove and return the attempts whose input images are there."""
        with self._lock:
            ready, self._ready = self._ready, []
        return ready

    def pop_all(self) -> list[Attempt]:
        """Remove and return all attempts that `pop_ready` has not returned."""
        with self._lock:
            left = [*self._ready, *self._pending]
            self._ready.clear()
            self._pending.clear()
            self._not_started.clear()
        return left

    def fetch(self, request: JobRequest, shape: Shape) -> tuple[InitInput, ...]:
        """Return the init image of `request` and its control image, resized to `shape`, or its
        latents; nothing if it names none.

        Raises:
            InputUnavailable: it cannot be fetched now.
            InvalidInput: it does not exist, may not be fetched, cannot be read as an image or as
                latents, or the latents do not fit the model and `shape`.
            StorageUnavailable, StorageDenied: this worker's store failed.
        """
        if request.latents is not None and request.denoising_start is not None:
            return (self._read_latents(request.latents, request.denoising_start, shape),)
        inputs: list[InitInput] = []
        if request.image is not None:
            inputs.append(self._read_init_image(request, request.image, shape))
        if request.control_image is not None:
            image, image_digest = self._read_image("control_image", request.control_image, shape)
            pixels = np.asarray(image)
            digest = _digest(pixels.tobytes())
            inputs.append(ControlImage(pixels=pixels, digest=digest, image_digest=image_digest))
        return tuple(inputs)

    def _read_init_image(self, request: JobRequest, address: str, shape: Shape) -> InitImage:
        if (limits := self._image_limits) and not limits.allow(shape.height, shape.width):
            raise InvalidInput(
                f"image: this model takes none for a size of {shape}; height and width must have "
                f"{limits}"
            )
        image, image_digest = self._read_image("image", address, shape)
        pixels, mask_levels, mask_digest = np.asarray(image), None, ""
        if request.mask_image is not None:
            mask, mask_digest = self._read_image("mask_image", request.mask_image, shape)
            mask_levels = np.asarray(mask.convert("L"))
        return InitImage(
            pixels=pixels,
            mask_levels=mask_levels,
            strength=request.denoised_share(self._default_strengths),
            rounds_up=self._default_strengths.rounds_up,
            digest=_digest(pixels.tobytes(), b"" if mask_levels is None else mask_levels.tobytes()),
            image_digest=image_digest,
            mask_image_digest=mask_digest,
        )

    def _start_fetches(self) -> None:
        """Start the fetches for which there is a thread, the oldest first."""
        with self._lock:
            self._not_started = [
                attempt for attempt in self._not_started if not self._start_or_drop(attempt)
            ]

    def _start_or_drop(self, attempt: Attempt) -> bool:
        """Start a fetch, or drop it if its attempt has ended. Return False if it must wait."""
        if attempt.ended:
            del self._pending[attempt]
            self._permits.release(attempt.tag)
            return True
        if not self._fetching.take(attempt, self._pending[attempt]):
            return False
        self._fetchers.submit(self._fetch_and_release, attempt)
        return True

    def _fetch_and_release(self, attempt: Attempt) -> None:
        try:
            with log_fields(job_id=attempt.job_id, claim=attempt.tag):
                self._fetch_into(attempt)
        finally:
            self._fetching.release(attempt)
            self._permits.release(attempt.tag)
            self._start_fetches()

    def _fetch_into(self, attempt: Attempt) -> None:
        try:
            inputs = self.fetch(attempt.request, attempt.shape)
        except ImagefleetError as error:
            log.warning("job %s: %s", attempt.job_id, error)
            attempt.abandon(error)
        except Exception as error:  # nothing reads the future of this thread
            log.exception("job %s: its input image cannot be read", attempt.job_id)
            field = input_field_of(attempt.request)
            attempt.abandon(InvalidInput(f"{field}: {type(error).__name__}: {error}"))
        else:
            attempt.start_from(*inputs)
        with self._lock:
            if self._pending.pop(attempt, None) is not None and not attempt.ended:
                self._ready.append(attempt)

    def _read_image(self, field: str, address: str, shape: Shape) -> tuple[Image.Image, str]:
        """Return an image, resized to `shape`, and the digest of its file."""
        data = self._read_bytes(field, address, MAX_INPUT_BYTES)
        with self._decoding:
            return decode_image(field, data, shape), _digest(data)

    def _read_latents(self, address: str, denoising_start: float, shape: Shape) -> InputLatents:
        if self._latents is None:
            raise InvalidInput("latents: this model takes none")
        data = self._read_bytes("latents", address, max_file_bytes(self._latents, shape))
        try:
            with self._decoding:
                values = decode_latents(data, self._latents, shape)
        except ValueError as error:
            raise InvalidInput(f"latents: {printable(str(error))}") from error
        digest = _digest(values.tobytes())
        return InputLatents(values=values, denoising_start=denoising_start, digest=digest)

    def _read_bytes(self, field: str, address: str, max_bytes: int) -> bytes:
        if address.startswith(("http://", "https://")):
            return self._download(field, address, max_bytes)
        key = address.removeprefix(self._store.url)
        if "://" in key:
            raise InvalidInput(
                f"{field}: must be an http(s) address, or an object of {self._store.url}"
            )
        try:
            return self._store.get(key, max_bytes)
        except KeyError:
            raise InvalidInput(f"{field}: there is no {key} in {self._store.url}") from None
        except InvalidRequest as error:
            raise InvalidInput(f"{field}: {error.limit}") from None

    def _download(self, field: str, url: str, max_bytes: int) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        # A name server may take longer than the limit, and getaddrinfo cannot be interrupted.
        endpoint = self._resolvers.submit(resolve_allowed, url, self._allow)
        headers = {"user-agent": f"imagefleet/{version('imagefleet')}"}
        try:
            response = send_http_request(
                endpoint.result(self._timeout_s),
                self._tls,
                "GET",
                headers,
                deadline=deadline,
                max_bytes=max_bytes + 1,
            )
        except CallbackRefused as error:
            raise InvalidInput(f"{field}: {error}") from None
        except REQUEST_ERRORS as error:
            late = time.monotonic() >= deadline
            why = f"not fetched within {self._timeout_s:g} s" if late else f"{error}"
            server = urlsplit(url).netloc.rpartition("@")[2]
            raise InputUnavailable(f"{field}: {server}: {why or type(error).__name__}") from error
        if response.status >= 500 or response.status in _TRANSIENT_STATUSES:
            raise InputUnavailable(f"{field}: its server answers {response.status}")
        if response.status != 200:
            note = "; redirects are not followed" if 300 <= response.status < 400 else ""
            raise InvalidInput(f"{field}: its server answers {response.status}{note}")
        if len(response.body) > max_bytes:
            raise InvalidInput(f"{field}: must be at most {max_bytes:,} bytes")
        if not response.complete:
            why = f"not fetched within {self._timeout_s:g} s"
            if time.monotonic() < deadline:  # else this worker has closed the connection
                why = "its server closed the connection before the file was complete"
            raise InputUnavailable(f"{field}: {why}")
        return response.body


def addresses_of_inputs(request: JobRequest) -> dict[str, str]:
    """Return the addresses of the files that a job starts from or is steered by, by parameter."""
    given = {name: getattr(request, name) for name in INPUT_FIELDS}
    return {name: address for name, address in given.items() if address is not None}


def input_field_of(request: JobRequest) -> str:
    """Return the parameter that names what a job starts from or is steered by."""
    names = ("latents", "control_image")
    return next((name for name in names if getattr(request, name) is not None), "image")


def _digest(*data: bytes) -> str:
    return f"sha256:{hashlib.sha256(b''.join(data)).hexdigest()}"
