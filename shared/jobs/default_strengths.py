"""The `strength` of jobs that name none, and the steps that a strength leaves.

Nothing is read or checked here.
"""

from typing import Final, NamedTuple


class DefaultStrengths(NamedTuple):
    """The `strength` of jobs that name none, by what they start from."""

    image: float | None
    """It holds for jobs with an `image` alone. None: the model takes neither `strength` nor
    `mask_image`."""
    mask: float | None
    """It holds for jobs with a `mask_image`, too."""
    rounds_up: bool = False
    """Whether a step of which the strength leaves a part is run, as diffusers does with flow
    models."""

    def steps_left(self, steps: int, strength: float) -> int:
        """Return how many of `steps` are run with a strength, computed as in diffusers."""
        return steps_left(steps, strength, rounds_up=self.rounds_up)


def steps_left(steps: int, strength: float, *, rounds_up: bool) -> int:
    """Return how many of `steps` are run with a strength. See `DefaultStrengths.rounds_up`."""
    exact = steps * strength
    return steps - int(max(steps - exact, 0)) if rounds_up else int(exact)


STABLE_DIFFUSION: Final = DefaultStrengths(image=0.8, mask=1.0)
"""These are the defaults of diffusers' pipelines of Stable Diffusion 1 and 2."""
STABLE_DIFFUSION_XL: Final = DefaultStrengths(image=0.3, mask=0.9999)
"""These are the defaults of diffusers' pipelines of SDXL."""
FORMER_STRENGTH: Final = 0.8
"""Releases before 0.2.0 had this default for every model. Samples of their datasets stay valid."""
NO_STRENGTH: Final = DefaultStrengths(image=None, mask=None)
"""Of a model that takes neither `strength` nor `mask_image`."""
