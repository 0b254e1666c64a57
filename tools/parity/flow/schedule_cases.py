"""List the cases in which schedulers of flow models are compared, without JAX and PyTorch."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

DYNAMIC: Final = {"use_dynamic_shifting": True}
STATIC: Final = {"shift": 3.0}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "shift": STATIC,
    "far": {"shift": 6.0},
    "dynamic": DYNAMIC,
    "dynamic_linear": {**DYNAMIC, "time_shift_type": "linear"},
    "other_ends": {
        **DYNAMIC,
        "base_shift": 0.3,
        "max_shift": 1.6,
        "base_image_seq_len": 64,
        "max_image_seq_len": 8192,
    },
    "terminal": {**STATIC, "shift_terminal": 0.02},
    "dynamic_terminal": {**DYNAMIC, "shift_terminal": 0.1},
    "karras": {**STATIC, "use_karras_sigmas": True},
    "exponential": {**DYNAMIC, "use_exponential_sigmas": True},
    "beta": {**STATIC, "use_beta_sigmas": True},
    "stochastic": {**STATIC, "stochastic_sampling": True},
    "fewer_timesteps": {**STATIC, "num_train_timesteps": 500},
    "first_order": {**STATIC, "solver_order": 1},
    "third_order": {**STATIC, "solver_order": 3},
    "heun": {**STATIC, "solver_type": "heun"},
    "sde": {**STATIC, "algorithm_type": "sde-dpmsolver++"},
    "euler_at_last": {**STATIC, "euler_at_final": True},
    "not_lower_at_last": {**STATIC, "lower_order_final": False},
    "bh1_to_lowest": {**STATIC, "solver_type": "bh1", "final_sigmas_type": "sigma_min"},
    "to_lowest": {**DYNAMIC, "final_sigmas_type": "sigma_min"},
    "corrected_later": {**STATIC, "disable_corrector": [0, 1]},
}
"""By their name in the cases. `shift` is `flow_shift` where diffusers' class calls it so."""
COMMON: Final = ("plain", "shift", "far", "dynamic", "other_ends", "fewer_timesteps")
OF_SCHEDULER: Final = {
    "euler": (
        *(*COMMON, "dynamic_linear", "terminal", "dynamic_terminal"),
        *("karras", "exponential", "beta", "stochastic"),
    ),
    "lcm": (*COMMON, "terminal", "karras", "beta"),
    "heun": ("plain", "shift", "far", "fewer_timesteps", "dynamic"),
    "dpmsolver++": (
        *(*COMMON, "first_order", "third_order", "heun", "sde", "euler_at_last"),
        "not_lower_at_last",
    ),
    "unipc": (
        *(*COMMON, "dynamic_linear", "terminal", "first_order", "third_order", "bh1_to_lowest"),
        *("to_lowest", "corrected_later"),
    ),
}
"""By scheduler: the configs with which it is compared."""

Case = tuple[str, str, int, int, int]


def cases() -> Iterator[Case]:
    """Yield scheduler, config, steps, steps skipped by an init image, and tokens of the image."""
    for name, configs in OF_SCHEDULER.items():
        yield from product((name,), configs, (1, 2, 7), (0,), (1024,))
        yield from product((name,), configs[:4], (16,), (0, 5), (4096,))
