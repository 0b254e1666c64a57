"""Describe how a model uses the `image` of a job. Nothing is read or checked here."""

from dataclasses import dataclass

from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths


@dataclass(frozen=True, kw_only=True)
class ImageUse:
    """It says how a model uses the `image` of a job."""

    takes_image: bool = True
    """Whether jobs may have an `image`."""
    required: tuple[str, ...] = ()
    """It has those of `image` and `mask_image` that every job needs."""
    default_strengths: DefaultStrengths = STABLE_DIFFUSION
    """Jobs that give no `strength` get these defaults of diffusers' pipelines."""
    default_image_guidance_scale: float | None = None
    """Jobs that give no `image_guidance_scale` get this one. None means that the model takes
    none."""
