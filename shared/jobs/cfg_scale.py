"""Convert guidance scales between those of jobs and those of AUTOMATIC1111's web UI and ComfyUI.

There, 1 is no guidance for every model (the scale of Saharia et al. 2022). diffusers' pipelines of
some models count the w of Ho & Salimans 2022, which is one less; their offers say so by
`unguided_scale`. Input and output: numbers.
"""

from typing import Any, Final

_UNGUIDED: Final = 1.0
"""It is no guidance in the web UI."""


def guidance_scale_of(cfg_scale: Any, unguided_scale: float) -> Any:
    """Return the `guidance_scale` of a job for the CFG scale of another tool.

    What is no number of 0 or more is returned as it is, so that it is refused as it was given.

    Args:
        cfg_scale: A number, or a text of one.
        unguided_scale: The `guidance_scale` at which the model has no guidance.
    """
    if unguided_scale == _UNGUIDED or isinstance(cfg_scale, bool):
        return cfg_scale
    try:
        given = float(cfg_scale)
    except (TypeError, ValueError):
        return cfg_scale
    return max(unguided_scale, given + unguided_scale - _UNGUIDED) if given >= 0 else cfg_scale


def cfg_scale_of(guidance_scale: float, unguided_scale: float) -> float:
    """Return the CFG scale of the web UI for the `guidance_scale` of a job."""
    return guidance_scale + _UNGUIDED - unguided_scale
