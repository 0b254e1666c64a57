"""The pictures that jobs start from: fetched, checked and brought to the size of the job.

Goes in: attempts whose request names an `image`, and perhaps a `mask_image`. Comes out: the same
attempts with the pixels in their specs, or abandoned with the reason. Works in threads of its own:
the devices never wait for somebody's web server.
"""

import hashlib
import logging
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from imagefleet.shared.errors import (
    CallbackRefused,
    ImagefleetError,
    InputUnavailable,
    InvalidInput,
    InvalidRequest,
)
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.interface import InitImage, Shape
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.outbound.address_policy import AllowList, resolve_allowed
from imagefleet.worker.outbound.http_request import FAILURES, send_http_request

log = logging.getLogger(__name__)

LARGEST_BYTES: Final = 20_000_000
LARGEST_PIXELS: Final = 40_000_000
_FORMATS: Final = ("PNG", "JPEG", "WEBP")
_NAMES: Final = ", ".join(_FORMATS)
_TOTAL_S: Final = 30.0
"""For one picture, from the name server to the last byte."""
_THREADS: Final = 8
_DECODING: Final = 2
"""Pictures in memory as pixels: one of the largest takes 305 MB on its way."""
_DEEP_GREYS: Final = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes for grey of 16 bits."""
_BUSY: Final = (408, 425, 429)
"""Beside 5xx: answers that may be others in a while."""


class InputImages:
    """`begin` and `arrived` belong to the intake; `fetch` may be called from anywhere."""

    def __init__(self, store: ObjectStore, allow: AllowList, *, total_s: float = _TOTAL_S) -> None:
        self._store = store
        self._allow = allow
        self._total_s = total_s
        self._tls = ssl.create_default_context()
        self._decoding = threading.Semaphore(_DECODING)
        self._resolving = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolving")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="originals")
        self._lock = threading.Lock()
        self._expected: set[Attempt] = set()
        self._arrived: list[Attempt] = []

    def begin(self, attempt: Attempt) -> None:
        """Fetch what `attempt` starts from; it is among `arrived` later."""
        with self._lock:
            self._expected.add(attempt)
        self._threads.submit(self._bring, attempt)

    def arrived(self) -> list[Attempt]:
        """Attempts that can be painted now; each is told once."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    def put_down(self) -> list[Attempt]:
        """Forget, and return, the attempts that were not told as arrived."""
        with self._lock:
            left = [*self._arrived, *self._expected]
            self._arrived.clear()
            self._expected.clear()
        return left

    def fetch(self, request: JobRequest, shape: Shape) -> InitImage | None:
        """What `request` starts from, in the size of `shape`; None if from noise alone.

        Raises:
            InputUnavailable: it could not be had now.
            InvalidInput: it is not there, may not be fetched, or is no picture we read.
            StorageUnavailable, StorageDenied: our own store failed.
        """
        if request.image is None:
            return None
        pixels = np.asarray(self._picture("image", request.image, shape))
        repaint = None
        if request.mask_image is not None:
            mask = self._picture("mask_image", request.mask_image, shape)
            repaint = np.asarray(mask.convert("L")) >= 128
        digest = hashlib.sha256(pixels.tobytes())
        digest.update(b"" if repaint is None else repaint.tobytes())
        return InitImage(
            pixels=pixels,
            repaint=repaint,
            strength=request.share_painted,
            digest=f"sha256:{digest.hexdigest()}",
        )

    def _bring(self, attempt: Attempt) -> None:
        try:
            original = self.fetch(attempt.request, attempt.shape)
        except ImagefleetError as error:
            log.warning("job %s: %s", attempt.job_id, error)
            attempt.abandon(error)
        except Exception as error:  # nobody looks at this thread's future
            log.exception("job %s", attempt.job_id)
            attempt.abandon(InvalidInput(f"image: {type(error).__name__}: {error}"))
        else:
            attempt.specs = tuple(replace(spec, original=original) for spec in attempt.specs)
        with self._lock:
            if attempt in self._expected:
                self._expected.remove(attempt)
                if not attempt.ended:
                    self._arrived.append(attempt)

    def _picture(self, field: str, address: str, shape: Shape) -> Image.Image:
        """As diffusers' `load_image` reads and `VaeImageProcessor` resizes it."""
        data = self._bytes(field, address)
        if len(data) > LARGEST_BYTES:
            raise InvalidInput(f"{field}: must be at most {LARGEST_BYTES:,} bytes")
        try:
            with self._decoding, Image.open(BytesIO(data), formats=_FORMATS) as opened:
                if opened.width * opened.height > LARGEST_PIXELS:
                    raise InvalidInput(
                        f"{field}: {opened.width}x{opened.height}; must be at most "
                        f"{LARGEST_PIXELS:,} pixels"
                    )
                upright = _in_colours(ImageOps.exif_transpose(opened))
                return upright.resize((shape.width, shape.height), Image.Resampling.LANCZOS)
        except UnidentifiedImageError as error:  # whose words name an object of Python
            raise InvalidInput(f"{field}: cannot be read as {_NAMES}") from error
        except _UNREADABLE as error:
            raise InvalidInput(f"{field}: cannot be read as {_NAMES}: {error}") from error

    def _bytes(self, field: str, address: str) -> bytes:
        if address.startswith(("http://", "https://")):
            return self._download(field, address)
        key = address.removeprefix(self._store.url)
        if "://" in key:
            raise InvalidInput(
                f"{field}: must be an http(s) address, or an object of {self._store.url}"
            )
        try:
            return self._store.get(key)
        except KeyError:
            raise InvalidInput(f"{field}: there is no {key} in {self._store.url}") from None
        except InvalidRequest as error:
            raise InvalidInput(f"{field}: {error.limit}") from None

    def _download(self, field: str, url: str) -> bytes:
        deadline = time.monotonic() + self._total_s
        # A name server may take longer than we wait, and nothing stops getaddrinfo.
        vetted = self._resolving.submit(resolve_allowed, url, self._allow)
        headers = {"user-agent": f"imagefleet/{version('imagefleet')}"}
        try:
            answer = send_http_request(
                vetted.result(self._total_s),
                self._tls,
                "GET",
                headers,
                deadline=deadline,
                longest=LARGEST_BYTES + 1,
            )
        except CallbackRefused as error:
            raise InvalidInput(f"{field}: {error}") from None
        except FAILURES as error:
            late = time.monotonic() >= deadline
            why = f"not there within {self._total_s:g} s" if late else f"{error}"
            raise InputUnavailable(f"{field}: {why or type(error).__name__}") from error
        if answer.status >= 500 or answer.status in _BUSY:
            raise InputUnavailable(f"{field}: its server answers {answer.status}")
        if answer.status != 200:
            note = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            raise InvalidInput(f"{field}: its server answers {answer.status}{note}")
        if not answer.whole and len(answer.body) <= LARGEST_BYTES:
            raise InputUnavailable(f"{field}: its server stopped in the middle")
        return answer.body


def _in_colours(picture: Image.Image) -> Image.Image:
    if picture.mode in _DEEP_GREYS:  # of which Pillow makes white what is above 255
        picture = Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    return picture.convert("RGB")


_UNREADABLE: Final = (
    OSError,
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    EOFError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
