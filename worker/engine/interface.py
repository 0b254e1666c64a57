"""What the rest of the worker knows of an engine: a few verbs, numpy in between, no JAX.

Goes in: `ImageSpec`s, at most `capacity` of them, all of one `Shape`. Comes out: uint8 pictures.
An engine does not know of jobs, queues, records or storage.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, order=True)
class Shape:
    """Picture size in pixels. One compiled program per shape."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """`"512x768"` (height x width). Raises ValueError on anything else."""
        height, _, width = text.strip().lower().partition("x")
        if not (height.isdecimal() and width.isdecimal()):
            raise ValueError(f"{text!r} is not a picture size")
        return cls(height=int(height), width=int(width))


@dataclass(frozen=True, kw_only=True)
class InitImage:
    """A picture to start from, in the size of the one to make."""

    pixels: Pictures = field(repr=False, compare=False)
    """`[height, width, 3]`, RGB."""
    repaint: NDArray[np.bool_] | None = field(default=None, repr=False, compare=False)
    """`[height, width]`: where to paint; elsewhere the picture is kept. None: everywhere."""
    strength: float
    """How much of the way to paint anew, above 0 to 1: diffusers' word."""
    digest: str
    """`sha256:…` of the pixels and the mask, which stands for them where specs are compared."""


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """One picture to make, in diffusers' words. Everything it depends on and nothing else."""

    prompt: str
    negative_prompt: str = ""
    seed: int = 0
    image_index: int = 0
    num_inference_steps: int
    guidance_scale: float
    scheduler: str = "ddim"
    original: InitImage | None = None

    @property
    def steps(self) -> int:
        """Denoising steps it takes: from a picture, `strength` of `num_inference_steps`."""
        if self.original is None:
            return self.num_inference_steps
        return min(int(self.num_inference_steps * self.original.strength), self.num_inference_steps)


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The loaded checkpoint, as announced to producers and written beside each picture."""

    name: str
    digest: str
    """`sha256:…` over the weight and config files."""
    shapes: tuple[Shape, ...]
    """Declared shapes; the first is the default."""
    schedulers: tuple[str, ...]
    default_scheduler: str
    default_num_inference_steps: int
    default_guidance_scale: float
    max_num_inference_steps: int
    versions: dict[str, str] = field(default_factory=dict)
    """Library versions a picture depends on (jax, jaxlib, flax)."""


class Rendering(Protocol):
    """One batch on its way through the devices."""

    def __iter__(self) -> Iterator[int]:
        """Advance the batch, yielding the number of denoising steps done, until all are."""

    def drop(self, slots: Sequence[int]) -> None:
        """Paint these positions no further; between steps, from the thread that iterates. The
        others go on as if nothing had happened; when none is left the iteration ends at once. What
        `pictures` holds in a dropped position means nothing."""

    def previews(self) -> Callable[[], Pictures]:
        """Between steps, from the thread that iterates: start to draw what there is by now, small
        and rough, uint8 `[n, h, w, 3]`. What is returned waits for it, in any thread."""

    def pictures(self) -> Pictures:
        """Wait for the devices; uint8 `[n, height, width, 3]`, RGB, in the order of the specs."""

    def flagged(self) -> tuple[bool, ...]:
        """Wait for the devices; which pictures the model's safety checker made black. None, if it
        has no checker."""


class Engine(Protocol):
    """A model on this host's devices."""

    info: ModelInfo
    capacity: int
    """Pictures per batch: devices x per-device batch."""

    def warm(self) -> None:
        """Compile every declared shape and run it once. After this nothing compiles."""

    def render(self, specs: Sequence[ImageSpec], shape: Shape) -> Rendering:
        """Start a batch of 1..capacity pictures; short ones are padded inside.

        Raises:
            ValueError: no specs, too many, or an undeclared shape.
            DeviceError: the accelerator failed.
        """

    def truncated(self, prompt: str) -> bool:
        """Whether the tokenizer cuts this prompt at the model's length (77 tokens for SD)."""

    @property
    def recompiles(self) -> int:
        """Programs compiled since `warm` returned. Stays 0."""
