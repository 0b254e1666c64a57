"""The options of single solvers in `scheduler/scheduler_config.json`.

Input: the fields of the file, which may be of any scheduler: as in diffusers, a solver takes its
own fields and ignores the others. Output: the options, or None where the solver does not support
the file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from imagefleet.worker.engine.models.config_reader import ConfigReader

_ORDERS: Final = (2, 1, 3)
Values = Mapping[str, tuple[object, ...]]
_DPM_VALUES: Final[Values] = {
    "solver_order": _ORDERS,
    "solver_type": ("midpoint", "heun", "logrho", "bh1", "bh2"),
    "algorithm_type": ("dpmsolver++", "sde-dpmsolver++", "deis"),
}
"""Supported values of DPM-Solver++'s options, the default first. As in diffusers, the types of DEIS
and UniPC stand for the defaults."""
_SINGLESTEP_VALUES: Final[Values] = {
    **_DPM_VALUES,
    "algorithm_type": ("dpmsolver++", "deis"),
}
"""The same of the singlestep solver. Its SDE would start a group's later steps from a sample whose
noise the table does not keep."""
_DEIS_VALUES: Final[Values] = {
    "solver_order": _ORDERS,
    "solver_type": ("logrho", "midpoint", "heun", "bh1", "bh2"),
    "algorithm_type": ("deis", "dpmsolver", "dpmsolver++"),
}
"""The same of DEIS, where the types of all others stand for its own."""
_UNIPC_VALUES: Final[Values] = {
    "solver_order": _ORDERS,
    "solver_type": ("bh2", "bh1", "midpoint", "heun", "logrho"),
    "predict_x0": (True,),
}
"""The same of UniPC."""


def _values(fields: ConfigReader, supported: Values, *, is_own: bool) -> dict[str, object] | None:
    """Return the value of each field, the default if it is missing.

    None: the file is of another scheduler (`is_own` is false), and some value is unsupported.
    """
    values = {name: fields.get(name, allowed[0]) for name, allowed in supported.items()}
    if not is_own and any(values[name] not in supported[name] for name in values):
        return None
    for name, value in values.items():
        fields.require_one_of(name, value, supported[name])
    return values


@dataclass(frozen=True, kw_only=True)
class DpmOptions:
    """Options of DPM-Solver++."""

    solver_order: int = 2
    solver_type: str = "midpoint"
    stochastic: bool = False
    lower_order_final: bool = True
    euler_at_final: bool = False
    lambda_min_clipped: float = -math.inf

    @classmethod
    def read(cls, fields: ConfigReader, *, is_own: bool) -> Self | None:
        """Return the options. None: DPM-Solver++ is not supported with this file."""
        if (values := _values(fields, _DPM_VALUES, is_own=is_own)) is None:
            return None
        return cls(
            solver_order=order_of(values),
            solver_type="heun" if values["solver_type"] == "heun" else "midpoint",
            stochastic=values["algorithm_type"] == "sde-dpmsolver++",
            lower_order_final=fields.flag("lower_order_final", True),
            euler_at_final=fields.flag("euler_at_final", False),
            lambda_min_clipped=fields.number("lambda_min_clipped", -math.inf),
        )

    @classmethod
    def read_singlestep(cls, fields: ConfigReader, *, is_own: bool) -> Self | None:
        """Return the options of the singlestep solver. None: it is not supported with this file."""
        if (values := _values(fields, _SINGLESTEP_VALUES, is_own=is_own)) is None:
            return None
        return cls(
            solver_order=order_of(values),
            solver_type="heun" if values["solver_type"] == "heun" else "midpoint",
            lower_order_final=fields.flag("lower_order_final", False),
            lambda_min_clipped=fields.number("lambda_min_clipped", -math.inf),
        )


@dataclass(frozen=True, kw_only=True)
class DeisOptions:
    """Options of DEIS."""

    solver_order: int = 2
    lower_order_final: bool = True

    @classmethod
    def read(cls, fields: ConfigReader, *, is_own: bool) -> Self | None:
        """Return the options. None: DEIS is not supported with this file."""
        if (values := _values(fields, _DEIS_VALUES, is_own=is_own)) is None:
            return None
        return cls(
            solver_order=order_of(values), lower_order_final=fields.flag("lower_order_final", True)
        )


@dataclass(frozen=True, kw_only=True)
class UniPcOptions:
    """Options of UniPC."""

    solver_order: int = 2
    solver_type: str = "bh2"
    lower_order_final: bool = True
    disable_corrector: tuple[int, ...] = ()
    """Steps after which the corrector is left out."""

    @classmethod
    def read(cls, fields: ConfigReader, *, is_own: bool) -> Self | None:
        """Return the options. None: UniPC is not supported with this file."""
        if (values := _values(fields, _UNIPC_VALUES, is_own=is_own)) is None:
            return None
        steps = fields.get("disable_corrector", [])
        if not isinstance(steps, list | tuple):
            fields.add_error(f"disable_corrector={steps!r} is not a list of steps")
            steps = []
        return cls(
            solver_order=order_of(values),
            solver_type="bh1" if values["solver_type"] == "bh1" else "bh2",
            lower_order_final=fields.flag("lower_order_final", True),
            disable_corrector=tuple(
                fields.checked_count("disable_corrector", step, 0) for step in steps
            ),
        )


def order_of(values: Mapping[str, object]) -> int:
    """Return the order of a solver; 2 if the file has none that is supported."""
    order = values["solver_order"]
    return order if isinstance(order, int) and order in _ORDERS else 2


@dataclass(frozen=True, kw_only=True)
class LcmOptions:
    """How a latent consistency model was distilled."""

    original_inference_steps: int = 50
    timestep_scaling: float = 10.0

    @classmethod
    def read(cls, fields: ConfigReader, train: int) -> Self:
        original = fields.count("original_inference_steps", min(50, train))
        if original > train:
            fields.add_error(
                f"original_inference_steps={original} is more than num_train_timesteps={train}"
            )
        return cls(
            original_inference_steps=original,
            timestep_scaling=fields.number("timestep_scaling", 10.0, above=0),
        )


@dataclass(frozen=True, kw_only=True)
class EdmOptions:
    """The noise levels and the preconditioning of Karras et al. 2022, table 1."""

    sigma_min: float = 0.002
    sigma_max: float = 80.0
    sigma_data: float = 0.5
    rho: float = 7.0
    is_exponential: bool = False

    @classmethod
    def read(cls, fields: ConfigReader) -> Self:
        """Return the options."""
        fields.choice("prediction_type", "epsilon", ("epsilon", "v_prediction"))
        spacing = fields.choice("sigma_schedule", "karras", ("karras", "exponential"))
        options = cls(
            sigma_min=fields.number("sigma_min", 0.002, above=0),
            sigma_max=fields.number("sigma_max", 80.0, above=0),
            sigma_data=fields.number("sigma_data", 0.5, above=0),
            rho=fields.number("rho", 7.0, above=0),
            is_exponential=spacing == "exponential",
        )
        if options.sigma_min >= options.sigma_max:
            fields.add_error(
                f"sigma_min={options.sigma_min:g} is not below sigma_max={options.sigma_max:g}"
            )
        return options
