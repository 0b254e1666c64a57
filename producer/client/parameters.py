"""Name the parameters of a job for type checkers and editors.

`make docs` writes the class `JobParameters` from the table of parameters, the fields of
`shared.jobs.request.JobRequest`, which check the values. None stands for a parameter that is not
given.
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
    """The parameters of a job beside its prompt and id, in diffusers' names.

    None, or leaving one out, stands for the default: the model's own, where none is named here.
    """

    negative_prompt: str | None
    """What the image should not show, at most 4,000 characters; by default nothing."""
    height: int | None
    """Pixels, a multiple of 8, with `width` a shape that a worker declared; by default the
    model's."""
    width: int | None
    """Pixels; with `height` or not at all."""
    num_inference_steps: int | None
    """Denoising steps, from 1 to the fleet's limit (often 100); by default the model's."""
    guidance_scale: float | None
    """0 to 50, by default the model's; there is no guidance up to 1 (Z-Image: 0; a distilled FLUX.2
    klein and FLUX.1 schnell never have any)."""
    clip_skip: int | None
    """Last layers of the text encoders that the prompt skips, 1 or more; by default none."""
    guidance_rescale: float | None
    """0 to 1, by default 0: how far guidance is kept from overexposing the image."""
    cfg_normalization: float | None
    """0 to 50, by default 0, which is off: the guided output has at most this many times the norm
    of the output with the prompt."""
    cfg_truncation: float | None
    """0 to 1, by default 1: there is no guidance after this share of the way from noise to the
    image."""
    true_cfg_scale: float | None
    """1 to 50, by default 1, which is off: how closely the image follows the prompt rather than
    `negative_prompt`, which it needs and which may be empty; each step takes twice the time."""
    prompt_weighting: bool | None
    """Whether brackets weigh words, and long prompts are read in chunks; by default not."""
    num_images_per_prompt: int | None
    """Images of the prompt, 1 to 64, by default 1."""
    image_index: int | None
    """Make only this image, from 0, of those of `num_images_per_prompt`; by default all."""
    seed: int | None
    """0 to 2³² - 1; by default drawn at random."""
    image: ImageInput | None
    """The image to start from: PNG, JPEG or WebP of at most 20 MB."""
    latents: str | PathLike[str] | bytes | None
    """What a job with `denoising_end` left: key, URL, path or content of a safetensors file."""
    denoising_start: float | None
    """The share of the steps that `latents` have behind them, between 0 and 1."""
    denoising_end: float | None
    """The share of the steps after which the job ends with latents, between 0 and 1."""
    mask_image: ImageInput | None
    """Where `image` is generated anew (white) and where it is kept (black)."""
    strength: float | None
    """The share of the steps that is denoised from `image` on, above 0 and at most 1."""
    image_guidance_scale: float | None
    """0 to 50: how closely a model that edits images follows `image`; only of such models."""
    controlnet: str | None
    """The name of a ControlNet that the workers hold; it steers the image by `control_image`."""
    control_image: ImageInput | None
    """The image by which `controlnet` steers: edges, depths or poses; it is resized."""
    controlnet_conditioning_scale: float | None
    """0 to 10, by default 1: it says how strongly `controlnet` steers."""
    control_guidance_start: float | None
    """0 to 1, by default 0: `controlnet` begins after this share of the steps."""
    control_guidance_end: float | None
    """0 to 1, by default 1: `controlnet` ends after this share of the steps."""
    preview: bool | None
    """Whether the status shows a preview while the job runs; by default not."""
    scheduler: str | None
    """One of `Client.offers()[…].schedulers`; by default the model's."""
    loras: Sequence[tuple[str, float]] | str | None
    """Names of LoRA that the workers hold, with scales: `[("style", 0.8)]` or `"style:0.8"`."""
    model: str | None
    """A model that workers serve; by default the fleet's default model."""
    format: ImageFormat | str | None
    """`png` (the default), `webp` or `jpeg`."""
    priority: int | None
    """0 (first) to 9 (last), by default 3."""
    tenant: str | None
    """On whose behalf the job runs; by default the client's tenant."""
    callback_url: str | None
    """The http(s) URL that receives a signed webhook for each of `callback_events`."""
    callback_events: Sequence[CallbackEvent | str] | None
    """By default `succeeded`, `failed` and `cancelled`."""
    callback_prediction: str | None
    """The prediction of an HTTP gateway that callbacks show; by default they show the job."""
    ttl: float | None
    """Seconds within which a worker must start the job, else it fails; by default for ever."""
    keep: str | float | None
    """How long images are kept after the job's success, as in `"30d"`, or in seconds."""
    metadata: Mapping[str, Any] | None
    """Your own, as JSON: in the status, in callbacks and beside the image."""
