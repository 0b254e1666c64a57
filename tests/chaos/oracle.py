"""Compute the images that a planned job must have, with an engine of this process.

Input: planned jobs. Output: the files that must be stored. Encoding is deterministic. An image of
the fake engine is a pure function of its spec, so its file is known byte by byte. One of a real
model may be a level off, because beside others it runs another program.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from PIL import Image

from imagefleet.shared.storage.job_keys import image_key
from imagefleet.worker.engine.contract.interface import Engine, Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.images.encode import encode
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import plan_attempt
from imagefleet.worker.settings.worker_settings import WorkerSettings
from tests.chaos.planned_jobs import SIZES, PlannedJob

SHAPES: Final = tuple(Shape(height=height, width=width) for height, width in SIZES)
_SLOTS: Final = 4
"""A batch of a real model has so many slots. A planned job has at most as many images."""
SETTINGS_OF_REAL: Final = {
    "IMAGEFLEET_DEVICES": "1",
    "IMAGEFLEET_PER_DEVICE_BATCH": str(_SLOTS),
}
"""They are those of workers that run a real model."""


@dataclass(frozen=True, kw_only=True)
class ExpectedImage:
    """One image as it must be stored."""

    index: int
    key: str
    data: bytes
    seed: int


class Oracle:
    """It knows the images of planned jobs."""

    def __init__(self, engine: Engine, levels: int = 0) -> None:
        """
        Args:
            levels: How far a value of an image may be off. 0: files must have the same bytes.
        """
        self._engine: Final = engine
        self._levels: Final = levels
        self.rounded = 0
        """This many files agreed, and had a value that is off."""

    @classmethod
    def of_model(cls, model: str) -> Self:
        """Load a real model. Processes must not be forked from this one any more."""
        engine = load_engine(
            model,
            shapes=SHAPES,
            per_device_batch=_SLOTS,
            devices=1,
            cache_dir=WorkerSettings.load().cache_dir,
        )
        engine.warm()
        return cls(engine, levels=1)

    def expected(self, job: PlannedJob) -> Iterator[ExpectedImage]:
        """Yield the images that a job must have.

        Poison jobs are not allowed: they would do here what they do to workers.
        """
        info = self._engine.info
        attempt = plan_attempt(job.id, job.request, info)
        images = self._engine.start_batch(attempt.specs, attempt.shape).images()
        for index, (spec, pixels) in enumerate(zip(attempt.specs, images, strict=True)):
            metadata = image_metadata(job_id=job.id, spec=spec, shape=attempt.shape, info=info)
            encoded = encode(pixels, job.request.format.value, metadata)
            key = image_key(job.id, index, encoded.extension)
            yield ExpectedImage(index=index, key=key, data=encoded.data, seed=spec.seed)

    def agrees(self, expected: ExpectedImage, data: bytes) -> bool:
        """Return whether a stored file is the expected one."""
        if data == expected.data or not self._levels:
            return data == expected.data
        ours, theirs = (Image.open(io.BytesIO(each)) for each in (expected.data, data))
        if ours.size != theirs.size or _metadata(ours) != _metadata(theirs):
            return False
        apart = np.abs(np.asarray(ours, int) - np.asarray(theirs, int)).max()
        self.rounded += int(apart <= self._levels)
        return bool(apart <= self._levels)


def compile_programs(environment: Mapping[str, str]) -> None:
    """Compile what workers with these settings run, so that they need not.

    Another process does it: JAX in this one would not survive the forks of others.
    """
    command = [sys.executable, "-m", "imagefleet.worker", "compile"]
    subprocess.run(command, env={**os.environ, **environment}, check=True)


FAKE: Final = Oracle(FakeEngine(shapes=SHAPES))


def _metadata(image: Image.Image) -> dict[str, Any]:
    """Return the metadata in a PNG file, without the digest of its pixels."""
    metadata: dict[str, Any] = json.loads(image.info["imagefleet"])
    del metadata["pixel_sha256"]
    return metadata
