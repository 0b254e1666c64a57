"""How a model uses the `image` of a job. It is a record; nothing is read or checked here."""

from dataclasses import dataclass

from imagefleet.shared.jobs.request import DEFAULT_STRENGTH


@dataclass(frozen=True, kw_only=True)
class ImageUse:
    """How a model uses the `image` of a job."""

    required: tuple[str, ...] = ()
    """Those of `image` and `mask_image` that every job needs."""
    default_strength: float | None = DEFAULT_STRENGTH
    """`strength` of jobs that name none, diffusers' default for image-to-image. None: the model
    takes neither `strength` nor `mask_image`."""
    default_image_guidance_scale: float | None = None
    """`image_guidance_scale` of jobs that name none. None: the model takes none."""
