"""Read the options of single solvers in `scheduler/scheduler_config.json`.

Input: the fields of the file, which may be of any scheduler: as in diffusers, a solver takes those
that it knows. Output: the options. Where the file has a value that a solver does not support,
`supported_fields` says so, and its options here are those of another value.
"""

import math
from dataclasses import dataclass
from typing import Self

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader
from imagefleet.worker.engine.schedulers.supported_fields import SOLVER_ORDERS


@dataclass(frozen=True, kw_only=True)
class DpmOptions:
    """It has the options of DPM-Solver++."""

    solver_order: int = 2
    solver_type: str = "midpoint"
    stochastic: bool = False
    lower_order_final: bool = True
    euler_at_final: bool = False
    lambda_min_clipped: float = -math.inf

    @classmethod
    def read(cls, fields: ConfigReader) -> Self:
        """Return the options."""
        return cls(
            solver_order=_order(fields),
            solver_type="heun" if fields.get("solver_type", None) == "heun" else "midpoint",
            stochastic=fields.get("algorithm_type", None) == "sde-dpmsolver++",
            lower_order_final=fields.flag("lower_order_final", True),
            euler_at_final=fields.flag("euler_at_final", False),
            lambda_min_clipped=fields.number("lambda_min_clipped", -math.inf),
        )

    @classmethod
    def read_singlestep(cls, fields: ConfigReader) -> Self:
        """Return the options of the singlestep solver."""
        return cls(
            solver_order=_order(fields),
            solver_type="heun" if fields.get("solver_type", None) == "heun" else "midpoint",
            lower_order_final=fields.flag("lower_order_final", False),
            lambda_min_clipped=fields.number("lambda_min_clipped", -math.inf),
        )


@dataclass(frozen=True, kw_only=True)
class DeisOptions:
    """It has the options of DEIS."""

    solver_order: int = 2
    lower_order_final: bool = True

    @classmethod
    def read(cls, fields: ConfigReader) -> Self:
        """Return the options."""
        return cls(
            solver_order=_order(fields), lower_order_final=fields.flag("lower_order_final", True)
        )


@dataclass(frozen=True, kw_only=True)
class UniPcOptions:
    """It has the options of UniPC."""

    solver_order: int = 2
    solver_type: str = "bh2"
    lower_order_final: bool = True
    disable_corrector: tuple[int, ...] = ()
    """After these steps the corrector is left out."""

    @classmethod
    def read(cls, fields: ConfigReader) -> Self:
        """Return the options."""
        steps = fields.get("disable_corrector", [])
        if not isinstance(steps, list | tuple):
            fields.add_error(f"disable_corrector={steps!r} is not a list of steps")
            steps = []
        return cls(
            solver_order=_order(fields),
            solver_type="bh1" if fields.get("solver_type", None) == "bh1" else "bh2",
            lower_order_final=fields.flag("lower_order_final", True),
            disable_corrector=tuple(
                fields.checked_count("disable_corrector", step, 0) for step in steps
            ),
        )


def _order(fields: ConfigReader) -> int:
    """Return the order of a solver; 2 if the file has none that is supported."""
    order = fields.get("solver_order", 2)
    return order if isinstance(order, int) and order in SOLVER_ORDERS else 2


@dataclass(frozen=True, kw_only=True)
class LcmOptions:
    """It says how a latent consistency model was distilled."""

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
    """It has the noise levels and the preconditioning of Karras et al. 2022, table 1."""

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
