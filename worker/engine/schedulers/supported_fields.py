"""List the fields of `scheduler/scheduler_config.json` of which a scheduler supports some values
only.

Input: the fields of the file, which may be of any class: as in diffusers, a scheduler reads those
that it knows, and no others. Output: by scheduler, the field for which it cannot run with the
file.
"""

from collections.abc import Mapping
from typing import Final

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, unsupported_value

Values = Mapping[str, tuple[object, ...]]

SOLVER_ORDERS: Final = (2, 1, 3)
_TYPES_OF_DPM: Final = ("midpoint", "heun")
_TYPES_OF_DEIS: Final = ("logrho",)
_TYPES_OF_UNIPC: Final = ("bh2", "bh1")
_OWN_SOLVER_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "DPMSolverMultistepScheduler": _TYPES_OF_DPM,
    "DPMSolverSinglestepScheduler": _TYPES_OF_DPM,
    "DEISMultistepScheduler": _TYPES_OF_DEIS,
    "UniPCMultistepScheduler": _TYPES_OF_UNIPC,
}
"""It has each class's own types of its solver, its default first."""
_SOLVER_TYPES: Final = (*_TYPES_OF_DPM, *_TYPES_OF_DEIS, *_TYPES_OF_UNIPC)

_FIXED_VARIANCES: Final = (None, "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log")
"""A learned variance would be half of the model's output."""
_NO_THRESHOLDING: Final[Values] = {"thresholding": (False,)}
_MULTISTEP: Final[Values] = {
    **_NO_THRESHOLDING,
    "solver_order": SOLVER_ORDERS,
    "solver_type": _SOLVER_TYPES,
    "use_flow_sigmas": (False,),
}
_EDM_DPM: Final[Values] = {
    **_NO_THRESHOLDING,
    "solver_order": SOLVER_ORDERS,
    "solver_type": _SOLVER_TYPES,
    "algorithm_type": ("dpmsolver++", "sde-dpmsolver++", "deis"),
}
_DPM: Final[Values] = {
    **_EDM_DPM,
    "use_flow_sigmas": (False,),
    "use_lu_lambdas": (False,),
    "variance_type": _FIXED_VARIANCES,
}
_SUPPORTED: Final[Mapping[str, Values]] = {
    "ddim": _NO_THRESHOLDING,
    "lcm": _NO_THRESHOLDING,
    "pndm": {"skip_prk_steps": (True,)},
    "euler": {"interpolation_type": ("linear",), "timestep_type": ("discrete",)},
    "heun": {"clip_sample": (False, None)},  # h is the predicted noise, and not the predicted x0
    "dpmsolver++": _DPM,
    "dpmsolver++_karras": _DPM,
    # Its SDE would start a group's later steps from a sample whose noise the table does not keep.
    "dpmsolver++_singlestep": {
        **_MULTISTEP,
        "algorithm_type": ("dpmsolver++", "deis"),
        "variance_type": _FIXED_VARIANCES,
    },
    "deis": {**_MULTISTEP, "algorithm_type": ("deis", "dpmsolver", "dpmsolver++")},
    "unipc": {**_MULTISTEP, "predict_x0": (True,), "solver_p": (None,)},
    "edm_dpmsolver++": _EDM_DPM,
}
"""It has the supported values of each field, by scheduler. A missing field has the first value,
except for the fields below. As in diffusers, a type of another solver stands for the default of the
scheduler's own."""
_OTHER_DEFAULTS: Final[Mapping[str, object]] = {"skip_prk_steps": False}
"""diffusers has these defaults, which are not supported."""

_SPACED: Final = (
    *("euler", "dpmsolver++", "dpmsolver++_karras", "dpmsolver++_singlestep", "deis", "unipc"),
    *("lms", "heun", "kdpm2", "kdpm2_ancestral"),
)
"""These schedulers know other spacings of the noise levels. With such a spacing, those of diffusers
read `sigma_min` and `sigma_max`, also where they are no parameters of the class."""
_ALWAYS_SPACED: Final = ("dpmsolver++_karras",)


_FLOW_MULTISTEP: Final[Values] = {
    **_NO_THRESHOLDING,
    "solver_order": SOLVER_ORDERS,
    "solver_type": _SOLVER_TYPES,
}
_SUPPORTED_IN_FLOW: Final[Mapping[str, Values]] = {
    "euler": {"invert_sigmas": (False,)},
    "lcm": {"invert_sigmas": (False,), "scale_factors": (None,)},
    "dpmsolver++": {
        **_FLOW_MULTISTEP,
        "algorithm_type": ("dpmsolver++", "sde-dpmsolver++", "deis"),
        "use_lu_lambdas": (False,),
        "variance_type": _FIXED_VARIANCES,
        "final_sigmas_type": ("zero",),  # the other value is a noise level of betas
    },
    "unipc": {**_FLOW_MULTISTEP, "predict_x0": (True,), "solver_p": (None,)},
}
"""It has the supported values of each field for flow models, as `_SUPPORTED` for others."""


def unsupported(fields: ConfigReader, *, is_spaced: bool) -> dict[str, str]:
    """Return by scheduler the field, with its value, for which it cannot run with this file.

    Args:
        fields: Of the file.
        is_spaced: Whether the file asks for another spacing of the noise levels.
    """
    reasons: dict[str, str] = {}
    for name, values in _SUPPORTED.items():
        for field, allowed in values.items():
            value = fields.get(field, _OTHER_DEFAULTS.get(field, allowed[0]))
            if value not in allowed:
                reasons.setdefault(name, unsupported_value(field, value, allowed))
    for field in ("sigma_min", "sigma_max"):
        if (value := fields.get(field, None)) is not None:
            for name in _SPACED if is_spaced else _ALWAYS_SPACED:
                reasons.setdefault(name, unsupported_value(field, value, (None,)))
    return reasons


def unsupported_in_flow(
    fields: ConfigReader, *, is_spaced: bool, is_linear: bool
) -> dict[str, str]:
    """Return what `unsupported` returns, for the file of a flow model.

    Args:
        fields: Of the file.
        is_spaced: Whether the file asks for another spacing of the noise levels. The solvers of
            diffusers would space those of betas.
        is_linear: Whether the file asks for dynamic shifts of the type `linear`.
    """
    reasons: dict[str, str] = {}
    for name, values in _SUPPORTED_IN_FLOW.items():
        for field, allowed in values.items():
            if (value := fields.get(field, allowed[0])) not in allowed:
                reasons.setdefault(name, unsupported_value(field, value, allowed))
    if is_linear:
        kinds = ("exponential",)
        reasons.setdefault("dpmsolver++", unsupported_value("time_shift_type", "linear", kinds))
    if is_spaced:
        for name in ("dpmsolver++", "unipc"):
            reasons.setdefault(name, "another spacing of the noise levels (use_karras_sigmas …)")
    return reasons


def as_own_class_leaves_it(config: Mapping[str, object], class_name: str) -> Mapping[str, object]:
    """Return the config as other schedulers read it.

    The solvers of diffusers write their default into their config, in the place of a type of
    another solver.
    """
    own, chosen = _OWN_SOLVER_TYPES.get(class_name, ()), config.get("solver_type")
    if not own or chosen in own or chosen not in _SOLVER_TYPES:
        return config
    return {**config, "solver_type": own[0]}
