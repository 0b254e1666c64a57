"""Name the parameters of a job for type checkers and editors.

`shared.jobs.request.JobRequest` checks the values; a test compares the names and types. None stands
for a parameter that is not given.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, TypedDict

from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat


class ImageObject(Protocol):
    """The part of a `PIL.Image.Image` that the client uses."""

    def save(self, fp: Any, format: str | None = None) -> None: ...


ImageInput = str | PathLike[str] | bytes | ImageObject
"""An image to start from: an http(s) address, a key or URL of the fleet's store, the path of a file
as a `pathlib.Path`, the content of a file, or an image of Pillow."""


class JobParameters(TypedDict, total=False):
    """The parameters of a job beside its prompt and id, in diffusers' names."""

    negative_prompt: str | None
    height: int | None
    width: int | None
    num_inference_steps: int | None
    guidance_scale: float | None
    clip_skip: int | None
    guidance_rescale: float | None
    prompt_weighting: bool | None
    num_images_per_prompt: int | None
    seed: int | None
    image: ImageInput | None
    mask_image: ImageInput | None
    latents: str | PathLike[str] | bytes | None
    denoising_start: float | None
    denoising_end: float | None
    strength: float | None
    image_guidance_scale: float | None
    preview: bool | None
    scheduler: str | None
    loras: Sequence[tuple[str, float]] | str | None
    model: str | None
    format: ImageFormat | str | None
    priority: int | None
    tenant: str | None
    callback_url: str | None
    callback_events: Sequence[CallbackEvent | str] | None
    ttl: float | None
    keep: str | float | None
    metadata: Mapping[str, Any] | None
