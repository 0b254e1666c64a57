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
    """Empty if none is given. One that is given but empty is a blank: SDXL tells the two apart."""
    num_inference_steps: int
    guidance_scale: float
    scheduler: str = "ddim"
    seed: int = 0
    image_index: int = 0
    """Which of the images of its prompt it is, from 0. The keys of its noise depend on it."""
    num_images_per_prompt: int = field(default=1, repr=False, compare=False)
    """How many images the prompt has. The metadata name it, and the image does not depend on it."""
    clip_skip: int | None = None
    """The last layers of the text encoders that the prompt skips. None: none."""
    guidance_rescale: float = 0.0
    """How far the guided output is scaled back to the deviation of the output with the prompt."""
    prompt_weighting: bool = False
    """Whether brackets in the prompts weigh their words, and long prompts are read in chunks."""
    denoising_end: float | None = None
    """The share of the steps after which latents leave (diffusers). None: they are decoded."""
    loras: tuple[tuple[str, float], ...] = ()
    """Name and scale of each LoRA, of those in `ModelInfo.job_loras`, each at most once."""
    image_guidance_scale: float | None = None
    """None: the model takes none."""
