"""Hold the rows of the parameters of guidance: the type, the limits and the row of each.

`shared.jobs.request` has their fields. A model offers those that its pipeline in diffusers has.
"""

from typing import Annotated

from imagefleet.shared.jobs.parameter import Parameter
from imagefleet.shared.jobs.parameter_types import Fraction, Guidance, TrueGuidance

GuidanceScale = Annotated[
    Guidance | None,
    Parameter(
        "0 to 50, by default the model's; there is no guidance up to 1 (Z-Image: 0; "
        "a distilled FLUX.2 klein and FLUX.1 schnell never have any).",
        rows_since=1,
        metadata="always",
    ),
]
GuidanceRescale = Annotated[
    Fraction | None,
    Parameter(
        "0 to 1, by default 0: how far guidance is kept from overexposing the image.",
        since=6,
        rows_since=5,
        counted_as="rescaled_guidances",
        offered_by="rescales_guidance",
        metadata="if used",
    ),
]
"""How far the guided output is scaled back to the deviation of the output with the prompt, as in
diffusers (Lin et al. 2023, section 3.4)."""
CfgNormalization = Annotated[
    Guidance | None,
    Parameter(
        "0 to 50, by default 0, which is off: the guided output has at most this many times the "
        "norm of the output with the prompt.",
        since=9,
        rows_since=8,
        counted_as="normalized_guidances",
        offered_by="limits_guidance",
        metadata="if used",
    ),
]
"""It is diffusers' `cfg_normalization` of ZImagePipeline. True stands for 1."""
CfgTruncation = Annotated[
    Fraction | None,
    Parameter(
        "0 to 1, by default 1: there is no guidance after this share of the way from noise to the "
        "image.",
        since=9,
        rows_since=8,
        counted_as="truncated_guidances",
        offered_by="limits_guidance",
        metadata="if used",
    ),
]
"""It is diffusers' `cfg_truncation` of ZImagePipeline. The share is 1 minus the noise level, not a
share of the steps."""
TrueCfgScale = Annotated[
    TrueGuidance | None,
    Parameter(
        "1 to 50, by default 1, which is off: how closely the image follows the prompt rather than "
        "`negative_prompt`, which it needs and which may be empty; each step takes twice the time.",
        since=11,
        rows_since=10,
        counted_as="true_guidances",
        offered_by="true_guidance",
        metadata="if used",
    ),
]
"""It is diffusers' `true_cfg_scale` of FLUX.1, whose `guidance_scale` is an input of the network.
As there, it has no effect on a job without a negative prompt."""
