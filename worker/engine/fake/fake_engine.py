"""Fake an engine without a model, for tests of everything around an engine. It needs only numpy.

Input: the same specs as for a real engine, and how long a step takes. Output: images that are a
pure function of their specs.
"""

import hashlib
import logging
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from imagefleet.shared.errors import ConfigurationError, DeviceError
from imagefleet.worker.engine.contract.device_memory import DeviceMemory
from imagefleet.worker.engine.contract.interface import (
    KNOWN_PROMPT,
    ImageSpec,
    ModelInfo,
    RunningBatch,
    Shape,
)
from imagefleet.worker.engine.contract.text_cache_use import TextCacheUse
from imagefleet.worker.engine.fake.fake_batch import LATENTS, FakeBatch, fake_image, fake_output
from imagefleet.worker.engine.fake.fake_stream import DeviceClock, FakeStream
from imagefleet.worker.engine.options.control_net_options import (
    ControlNetOption,
)
from imagefleet.worker.engine.options.lora_options import JobLora, LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions

log = logging.getLogger(__name__)

FAIL: Final = "[fail]"
"""A prompt that contains this fails its batch."""
DIE: Final = "[die]"
"""A prompt that contains this kills the process, like a device runtime that crashes."""
KILLED: Final = "the fake engine was told to kill its process"
"""Before it kills the process, it logs a line that begins with this."""
HANG: Final = "[hang]"
"""A prompt that contains this hangs its batch until `FakeEngine.release`."""

_USAGE: Final = (
    "write fake:seconds=0.05,decode=0.1,capacity=8,streams=4 (seconds and decode >= 0, capacity a "
    "multiple of streams, both >= 1)"
)
_MAX_TOKENS: Final = 77
_MAX_CLIP_SKIP: Final = 12
"""It is that of Stable Diffusion 1."""


def is_fake(model: str) -> bool:
    """Return whether the name of a model is one of the fake engine."""
    return model == "fake" or model.startswith("fake:")


class FakeEngine:
    """The fake engine runs no model. See `worker.engine.contract.interface.Engine`."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        decode_s: float = 0.0,
        capacity: int = 8,
        streams: int = 1,
        shapes: Sequence[Shape] | None = None,
        max_num_inference_steps: int = 100,
        failure_file: Path | None = None,
        name: str = "fake",
        job_loras: Sequence[LoraOption] = (),
        prompt_chunks: int = 0,
    ) -> None:
        """
        Args:
            seconds: Duration of one denoising step of a batch.
            decode_s: Time in which a device decodes one image.
            capacity: Images per batch.
            streams: Devices that these images are spread over.
            shapes: Declared shapes; by default 64x64.
            max_num_inference_steps: The announced limit.
            failure_file: Every batch fails while this file exists, as on a failing device.
            name: The announced name of the model.
            job_loras: LoRA that jobs may use. Their files are not read.
            prompt_chunks: The announced limit of prompts with weights.
        """
        self.capacity = capacity
        self.devices = "fake"
        self.uses_host_memory = False
        self.info = ModelInfo(
            name=name,
            digest="sha256:" + "0" * 64,
            shapes=tuple(shapes or [Shape(height=64, width=64)]),
            schedulers=("ddim",),
            default_scheduler="ddim",
            default_num_inference_steps=min(4, max_num_inference_steps),
            default_guidance_scale=7.5,
            max_num_inference_steps=max_num_inference_steps,
            max_clip_skip=_MAX_CLIP_SKIP,
            rescales_guidance=True,
            limits_guidance=True,
            true_guidance=True,
            prompt_chunks=prompt_chunks,
            latents=LATENTS,
            job_loras=tuple(JobLora(name=each.name, digest=_digest(each)) for each in job_loras),
        )
        self._seconds, self._decode_s = seconds, decode_s
        self._streams = streams
        self._devices = DeviceClock()
        self._released = threading.Event()
        self._failure_file = failure_file
        self._job_failure_file: Path | None = None

    @classmethod
    def parse(
        cls,
        model: str,
        *,
        shapes: Sequence[Shape] | None,
        max_num_inference_steps: int,
        options: ModelOptions | None = None,
    ) -> "FakeEngine":
        """Make an engine from `fake` or `fake:seconds=0.05,capacity=8`.

        The option `failing` is the path of the failure file, `name` the model's announced name.
        While the file `failing_jobs` exists, every batch fails but the known image of the health
        check.

        Raises:
            ConfigurationError: an option is unknown or not a number.
        """
        _, _, text = model.partition(":")
        options = options or ModelOptions()
        words = dict(word.partition("=")[::2] for word in text.split(",") if word)
        try:
            seconds, decode_s = float(words.pop("seconds", 0)), float(words.pop("decode", 0))
            capacity, streams = int(words.pop("capacity", 8)), int(words.pop("streams", 1))
        except ValueError:
            raise ConfigurationError(f"IMAGEFLEET_MODEL={model!r}: {_USAGE}") from None
        failure_file, name = words.pop("failing", None), words.pop("name", "fake")
        job_failure_file = words.pop("failing_jobs", None)
        too_small = min(seconds, decode_s) < 0 or min(capacity, streams) < 1
        if words or too_small or capacity % streams:
            raise ConfigurationError(f"IMAGEFLEET_MODEL={model!r}: {_USAGE}")
        engine = cls(
            seconds=seconds,
            decode_s=decode_s,
            capacity=capacity,
            streams=streams,
            shapes=shapes,
            max_num_inference_steps=max_num_inference_steps,
            failure_file=None if failure_file is None else Path(failure_file),
            name=name,
            job_loras=options.job_loras,
            prompt_chunks=options.prompt_chunks,
        )
        nets = {net.name: _digest(net) for net in options.control_nets}
        engine.info = replace(engine.info, model_license=options.model_license, controlnets=nets)
        engine._job_failure_file = None if job_failure_file is None else Path(job_failure_file)
        return engine

    def warm(self) -> None:
        """Do nothing: there is nothing to compile."""

    def start_batch(self, specs: Sequence[ImageSpec], shape: Shape) -> RunningBatch:
        """Start a batch.

        Raises:
            ValueError: no specs, too many specs, or an undeclared shape.
            DeviceError: the failure file exists.
        """
        self._require_healthy()
        if shape not in self.info.shapes:
            raise ValueError(f"shape {shape} is not declared")
        if not 1 <= len(specs) <= self.capacity:
            raise ValueError(f"{len(specs)} images; a batch takes 1 to {self.capacity}")
        decode_s = self._decode_s * self.capacity / self._streams
        return FakeBatch(specs, shape, self._devices, self._seconds, decode_s, self._before_steps)

    def open_streams(self) -> list[FakeStream]:
        """Return the streams; there is nothing to compile."""
        return [
            FakeStream(
                shapes=self.info.shapes,
                slots=self.capacity // self._streams,
                step_s=self._seconds,
                decode_s=self._decode_s,
                before_step=self._before_step_of_stream,
                image_of=fake_image,
                output_of=fake_output,
            )
            for _ in range(self._streams)
        ]

    def _before_step_of_stream(self, specs: Sequence[ImageSpec]) -> None:
        self._require_healthy()
        self._before_steps(specs)

    def _before_steps(self, specs: Sequence[ImageSpec]) -> None:
        """Do what the prompts demand."""
        known = all(spec.prompt == KNOWN_PROMPT for spec in specs)
        if not known and self._job_failure_file is not None and self._job_failure_file.exists():
            raise DeviceError(f"told to fail all but the known image by {self._job_failure_file}")
        for spec in specs:
            if FAIL in spec.prompt:
                raise DeviceError(f"the fake engine was told to fail by {spec.prompt[:60]!r}")
            if DIE in spec.prompt:
                log.error("%s by %r", KILLED, spec.prompt[:60])
                os.kill(os.getpid(), signal.SIGKILL)
            if HANG in spec.prompt:
                self._released.wait()

    def _require_healthy(self) -> None:
        if self._failure_file is not None and self._failure_file.exists():
            raise DeviceError(f"the fake engine was told to fail by the file {self._failure_file}")

    def truncated(self, spec: ImageSpec) -> bool:
        """Return whether the prompt has too many words; each word is one token here."""
        chunks = self.info.prompt_chunks if spec.prompt_weighting else 1
        return len(spec.prompt.split()) > chunks * (_MAX_TOKENS - 2)

    @property
    def recompiles(self) -> int:
        return 0

    @property
    def text_cache(self) -> TextCacheUse:
        return TextCacheUse()

    def memory(self) -> list[DeviceMemory]:
        return []

    def release(self) -> None:
        """Let batches that hang continue."""
        self._released.set()


def _digest(option: LoraOption | ControlNetOption) -> str:
    return f"sha256:{hashlib.sha256(option.path.encode()).hexdigest()}"
