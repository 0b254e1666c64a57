"""The scheduler configs with which samples are compared. It needs neither JAX nor PyTorch."""

from typing import Any, Final

BETA_SCHEDULES: Final = (
    ("linear", 0.0001, 0.02),
    ("linear", 0.00085, 0.012),
    ("scaled_linear", 0.00085, 0.012),
    ("squaredcos_cap_v2", 0.0001, 0.02),
)
"""The curve, first and last beta of the schedules whose cumulative alphas are compared."""
SD: Final = {
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "steps_offset": 1,
    "set_alpha_to_one": False,
}
SIGMA_MIN: Final = {**SD, "final_sigmas_type": "sigma_min"}
SDE: Final = {**SD, "algorithm_type": "sde-dpmsolver++"}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "sd": SD,
    "linear": {},
    "zero": {"rescale_betas_zero_snr": True},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
    "clipped_cosine": {"beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -3.0},
    "clip": {**SD, "clip_sample": True, "clip_sample_range": 0.8},
    "karras": {**SD, "use_karras_sigmas": True},
    "karras_cosine": {"beta_schedule": "squaredcos_cap_v2", "use_karras_sigmas": True},
    "sigma_min": SIGMA_MIN,
    "karras_sigma_min": {**SIGMA_MIN, "use_karras_sigmas": True},
    "karras_to_the_end": {**SIGMA_MIN, "use_karras_sigmas": True, "lower_order_final": False},
    "exponential_to_the_end": {
        **SIGMA_MIN,
        "use_exponential_sigmas": True,
        "lower_order_final": False,
    },
    "beta_to_the_end": {**SIGMA_MIN, "use_beta_sigmas": True, "lower_order_final": False},
    "not_lower_at_last": {**SIGMA_MIN, "lower_order_final": False},
    "euler_at_last": {**SIGMA_MIN, "lower_order_final": False, "euler_at_final": True},
    "distilled_100": {**SD, "original_inference_steps": 100},
    "distilled_100_cosine": {
        "beta_schedule": "squaredcos_cap_v2",
        "original_inference_steps": 100,
    },
    "first_order": {**SD, "solver_order": 1},
    "heun": {**SD, "solver_type": "heun"},
    "sde": SDE,
    "sde_heun": {**SDE, "solver_type": "heun"},
    "third_order": {**SD, "solver_order": 3},
    "third_order_heun": {**SD, "solver_order": 3, "solver_type": "heun"},
    "third_order_sde": {**SDE, "solver_order": 3},
    "third_order_to_the_end": {**SIGMA_MIN, "solver_order": 3, "lower_order_final": False},
    "bh1": {**SIGMA_MIN, "solver_type": "bh1"},
    "bh1_third_order": {**SIGMA_MIN, "solver_type": "bh1", "solver_order": 3},
    "corrected_later": {**SD, "disable_corrector": [0, 1]},
    "exponential": {**SD, "use_exponential_sigmas": True},
    "beta": {**SD, "use_beta_sigmas": True},
    "edm": {},
    "edm_sigma_min": {"final_sigmas_type": "sigma_min", "sigma_max": 20.0, "sigma_data": 1.0},
    "edm_exponential": {"sigma_schedule": "exponential"},
    "edm_third_order": {"solver_order": 3},
    "edm_sde": {"algorithm_type": "sde-dpmsolver++"},
}
"""By their name in the cases."""
