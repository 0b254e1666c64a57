"""Define the interface between an engine and the rest of the worker, with numpy and without JAX.

Input: at most `capacity` `ImageSpec`s of one `Shape`. Output: uint8 images. An engine does not
depend on jobs, queues, records or storage.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.jobs.add_ons import add_ons
from imagefleet.worker.engine.contract.control_image import ControlImage
from imagefleet.worker.engine.contract.device_memory import DeviceMemory
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.sampling import Sampling
from imagefleet.worker.engine.contract.text_cache_use import TextCacheUse
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents, LatentFormat
from imagefleet.worker.engine.options.lora_options import AppliedLora, JobLora
from imagefleet.worker.engine.options.textual_inversion_options import LoadedInversion

KNOWN_PROMPT = "a known image"
"""The health check of a worker generates images of this prompt."""
ImageArray = NDArray[np.uint8]
"""It is one RGB image, uint8 `[height, width, 3]`."""
ImageArrays = NDArray[np.uint8]
"""It is a batch of RGB images, uint8 `[n, height, width, 3]`."""
OutputArray = NDArray[Any]
"""It is a finished image as `ImageArray`, or with `denoising_end` a `LatentArray`."""


@dataclass(frozen=True, kw_only=True, order=True)
class Shape:
    """The shape is the image size in pixels. Every shape has its own executables."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse `"512x768"` (height x width). Raises ValueError on anything else."""
        height, _, width = text.strip().lower().partition("x")
        if height.isdecimal() and width.isdecimal() and int(height) and int(width):
            return cls(height=int(height), width=int(width))
        raise ValueError(
            f"{text!r} is not an image size; write height x width in pixels, as in 512x768, and a "
            "comma between several"
        )


@dataclass(frozen=True, kw_only=True)
class ImageSpec(Sampling):
    """It is one image to generate, in diffusers' names. The image depends on nothing else."""

    init_image: InitImage | None = None
    control_image: ControlImage | None = None
    """It steers the image if `controlnet` names a net."""
    input_latents: InputLatents | None = None
    """Another job has denoised these latents in part. None means that there are none."""

    def is_guided(self, info: "ModelInfo") -> bool:
        """Return whether the denoiser of this model also runs on the negative prompt."""
        if info.true_guidance:
            return self.true_cfg_scale > 1 and self.negative_prompt != ""
        image_guidance = self.image_guidance_scale
        is_guided = image_guidance is None or image_guidance >= 1
        return self.guidance_scale > info.unguided_scale and is_guided

    @property
    def skipped_steps(self) -> int:
        """Return the number of first steps that the `strength` of an init image leaves out."""
        steps = self.num_inference_steps
        return 0 if self.init_image is None else self.init_image.skipped_of(steps)

    @property
    def steps(self) -> int:
        """Return the denoising steps that run; an estimate with latents as input or result."""
        steps, first = self.num_inference_steps, self.skipped_steps
        if self.input_latents is None and self.denoising_end is None:
            return steps - first
        if self.input_latents is not None:
            first = round(steps * self.input_latents.denoising_start)
        last = steps if self.denoising_end is None else round(steps * self.denoising_end)
        return max(1, last - first)


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """It describes the loaded checkpoint, to producers and in the metadata file of each image."""

    name: str
    source: str | None = None
    """It is the Hub's id and commit, `org/name@commit`. None: the model is not from the Hub."""
    digest: str
    """It is `sha256:…` over the files of the checkpoint that were read, the merged LoRA with their
    scales, and the textual inversions."""
    model_license: str | None = None
    """It is the licence, as the card or the worker's settings say it. None: neither does."""
    loras: tuple[AppliedLora, ...] = ()
    """These LoRA were merged into the weights."""
    textual_inversions: tuple[LoadedInversion, ...] = ()
    """Prompts may contain the tokens of these textual inversions."""
    job_loras: tuple[JobLora, ...] = ()
    """Jobs may use these LoRA."""
    controlnets: dict[str, str] = field(default_factory=dict)
    """It has the digest of each ControlNet that jobs may use, by name."""
    shapes: tuple[Shape, ...]
    """These shapes are declared. The first is the default."""
    schedulers: tuple[str, ...]
    default_scheduler: str
    default_num_inference_steps: int
    default_guidance_scale: float
    unguided_scale: float = 1.0
    """A job whose `guidance_scale` is at most this one has no guidance."""
    max_num_inference_steps: int
    max_clip_skip: int = 0
    """A job may skip at most this many layers of the text encoders. 0: diffusers skips none."""
    rescales_guidance: bool = False
    """Whether jobs may have `guidance_rescale`. It is False if diffusers' pipeline has none."""
    limits_guidance: bool = False
    """Whether jobs may have `cfg_normalization` and `cfg_truncation`."""
    true_guidance: bool = False
    """Whether jobs may have `true_cfg_scale`. Then `guidance_scale` is an input of the denoiser."""
    prompt_chunks: int = 0
    """A prompt with `prompt_weighting` has at most this many chunks, each as long as the text
    encoders take. 0 means that there are no such prompts."""
    image_use: ImageUse = field(default_factory=ImageUse)
    latents: LatentFormat | None = None
    """Jobs pass on and take such latents. None means that diffusers has no `denoising_end` and
    `denoising_start` for this model."""
    versions: dict[str, str] = field(default_factory=dict)
    """It has the versions of the libraries that an image depends on (jax, jaxlib, flax)."""

    @property
    def add_ons(self) -> frozenset[str]:
        """Return the names of the LoRA and ControlNets that jobs may use, as queues have them."""
        return add_ons(self.job_lora_digests, self.controlnets)

    @property
    def job_lora_digests(self) -> dict[str, str]:
        """Return by name the digest of each LoRA that jobs may use."""
        return {lora.name: lora.digest for lora in self.job_loras}


class RunningBatch(Protocol):
    """The devices are denoising this batch. One thread iterates over it."""

    def __iter__(self) -> Iterator[int]:
        """Advance the batch to its end and yield the number of steps done after each step."""

    def drop(self, slots: Sequence[int]) -> None:
        """Stop waiting for these slots; the other slots are not affected.

        Call it between two steps, from the thread that iterates. The iteration ends at once when no
        slot is left. The content of `images` is undefined in a dropped slot.
        """

    def previews(self) -> Callable[[], ImageArrays]:
        """Start to compute small, rough images of the current state, uint8 `[n, h, w, 3]`.

        Call it between two steps, from the thread that iterates. The function that it returns waits
        for the result and may be called in any thread.
        """

    def images(self) -> ImageArrays:
        """Wait for the devices and return the images in the order of the specs.

        Raises:
            DeviceError: the devices failed, or an image contains NaN or infinity.
        """

    def outputs(self) -> Sequence[OutputArray]:
        """Return for each spec its image as in `images`, or its latents with `denoising_end`."""

    def flagged(self) -> tuple[bool, ...]:
        """Wait for the devices and return which images the model's safety checker made black.

        Without a safety checker all are False.
        """


@dataclass(frozen=True, kw_only=True)
class FinishedImage:
    """It is one image that left its slot."""

    pixels: OutputArray
    flagged: bool
    """It says whether the model's safety checker made the image black."""


class Stream(Protocol):
    """Its slots advance together, step by step, while images enter and leave between steps.

    A stream has the devices of one copy of the weights and waits for no other stream. All its
    running slots have one shape. One thread at a time calls it.
    """

    def start(self, slot: int, spec: ImageSpec, shape: Shape) -> None:
        """Put an image into a free slot: encode its prompt, draw its noise. Other slots continue.

        Raises:
            ValueError: an undeclared shape, one that differs from that of the running slots, or a
                spec that the engine refuses. The stream is as it was before.
            DeviceError: the devices failed.
        """

    def step(self) -> list[int]:
        """Do one step in every running slot. Wait until the devices are at most one step behind.

        Returns:
            The slots whose last step this was. They do not change any more; call `finish`.

        Raises:
            DeviceError: the devices failed. All running slots are lost; call `reset`.
        """

    def steps_done(self, slot: int) -> int:
        """Return the steps of a running slot that the devices have done."""

    def finish(self, slot: int) -> Callable[[], FinishedImage]:
        """Free a slot and start to decode its image.

        The function that this returns waits for the image and may be called in any thread. It
        raises DeviceError if the devices failed, or if the image contains NaN or infinity.
        """

    def drop(self, slot: int) -> None:
        """Free a slot whose image is no longer needed."""

    def previews(self) -> Callable[[], ImageArrays]:
        """Start to compute small, rough images of all slots, uint8 `[n, h, w, 3]` in the size of
        the latents.

        The function that this returns waits for them and may be called in any thread.
        """

    def reset(self) -> None:
        """Drop all slots after a failure and make the stream ready for new images.

        Raises:
            DeviceError: the devices still fail.
        """


class Engine(Protocol):
    """The engine runs one model on the devices of this host.

    A worker calls either `warm`, and then `start_batch` for whole batches, or `open_streams`.
    """

    info: ModelInfo
    capacity: int
    """A batch has this many images: copies of the weights x `per_device_batch`."""
    devices: str
    """It gives the number and kind of the devices, as in `8 x TPU v5 lite`."""
    uses_host_memory: bool
    """Whether a step's buffers come from the host's `malloc`, as those of XLA on CPU do."""

    def warm(self) -> None:
        """Compile the programs of every declared shape and run each once.

        Nothing is compiled after this.
        """

    def start_batch(self, specs: Sequence[ImageSpec], shape: Shape) -> RunningBatch:
        """Start a batch of 1 to `capacity` images. The engine pads a batch that is not full.

        Raises:
            ValueError: no specs, too many specs, or an undeclared shape.
            DeviceError: the devices failed.
        """

    def open_streams(self) -> Sequence[Stream]:
        """Compile the programs of every declared shape for streams, and return the streams.

        There is one for each copy of the weights, and all have equally many slots. Nothing is
        compiled after this.
        """

    def truncated(self, spec: ImageSpec) -> bool:
        """Return whether the prompt is cut (at the length of the text encoders, or at as
        many tokens in each of `prompt_chunks`)."""

    @property
    def recompiles(self) -> int:
        """Return the number of programs compiled since `warm` or `open_streams` returned. It should
        stay 0."""

    @property
    def text_cache(self) -> TextCacheUse:
        """Return how much the encoded texts that are kept are used."""

    def memory(self) -> Sequence[DeviceMemory]:
        """Return the memory of each device; empty if the runtime does not report it."""
