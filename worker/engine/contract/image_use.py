"""Describe how a model uses the `image` of a job. Nothing is read here."""

from dataclasses import dataclass

from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """It says for which sizes in pixels a job may have an `image`."""

    min_side: int
    max_pixels: int
    max_ratio: int
    """The longer side has at most so many times the pixels of the shorter one."""

    def allow(self, height: int, width: int) -> bool:
        """Return whether a job for images of this size may have an `image`."""
        short, long = sorted((height, width))
        is_too_large = height * width > self.max_pixels or long > self.max_ratio * short
        return short >= self.min_side and not is_too_large

    def __str__(self) -> str:
        return (
            f"{self.min_side} pixels or more a side, {self.max_pixels:,} at most in all, and no "
            f"side of more than {self.max_ratio} times the other"
        )


@dataclass(frozen=True, kw_only=True)
class ImageUse:
    """It says how a model uses the `image` of a job."""

    takes_image: bool = True
    """Whether jobs may have an `image`."""
    required: tuple[str, ...] = ()
    """It has those of `image` and `mask_image` that every job needs."""
    default_strengths: DefaultStrengths = STABLE_DIFFUSION
    """Jobs that give no `strength` get these defaults of diffusers' pipelines."""
    limits: ImageLimits | None = None
    """Only jobs for images of these sizes may have an `image`. None: those of all sizes."""
    default_image_guidance_scale: float | None = None
    """Jobs that give no `image_guidance_scale` get this one. None means that the model takes
    none."""
