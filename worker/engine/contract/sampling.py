"""Define the parameters that an image is sampled with, as one record.

`worker.jobs.attempt` fills it from a request and the defaults of the model, field by name. It is a
record; nothing is read or checked here.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The parameters of one image, in diffusers' names and with the model's defaults filled in.

    The metadata of an image list them in this order.
    """

    prompt: str
    negative_prompt: str = ""
    """It is empty if none is given, and a blank if an empty one is given: SDXL needs to know."""
    num_inference_steps: int
    guidance_scale: float
    scheduler: str = "ddim"
    seed: int = 0
    image_index: int = 0
    """It says which image of its prompt this is, from 0. The keys of its noise depend on it."""
    num_images_per_prompt: int = field(default=1, repr=False, compare=False)
    """The prompt has this many images. The metadata name it; the image does not depend on it."""
    clip_skip: int | None = None
    """The prompt skips this many last layers of the text encoders. None means that it skips
    none."""
    guidance_rescale: float = 0.0
    """It says how far the guided output is scaled back to the standard deviation of the output with
    the prompt."""
    cfg_normalization: float = 0.0
    """The guided output has at most this many times the norm of the output with the prompt. 0 means
    that its norm has no limit."""
    cfg_truncation: float = 1.0
    """There is no guidance where the noise level is below 1 minus this."""
    true_cfg_scale: float = 1.0
    """It is the scale of the guidance by the negative prompt, if one is given, of models that read
    `guidance_scale` as an input. 1 means that there is none."""
    prompt_weighting: bool = False
    """Whether brackets in the prompts weigh their words, and long prompts are read in chunks."""
    denoising_end: float | None = None
    """After this share of the steps, the image ends as latents (diffusers). None: it is decoded."""
    loras: tuple[tuple[str, float], ...] = ()
    """It has name and scale of each LoRA, of those in `ModelInfo.job_loras`, at most once each."""
    controlnet: str | None = None
    """It is the name of a ControlNet, of those in `ModelInfo.controlnets`. None: no net steers the
    image."""
    controlnet_conditioning_scale: float = 1.0
    control_guidance_start: float = 0.0
    control_guidance_end: float = 1.0
    """The net runs from the start to the end, which are shares of the steps (diffusers)."""
    image_guidance_scale: float | None = None
    """None means that the model takes none."""
