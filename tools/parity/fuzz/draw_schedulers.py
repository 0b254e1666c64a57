"""Draw scheduler files, and the class that model_index.json names for them."""

from typing import Any

from tools.parity.fuzz.draft import INDEX, REMOVED, SCHEDULER, Draft

OURS = (
    "DDIMScheduler",
    "PNDMScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "LCMScheduler",
    "TCDScheduler",
    "DEISMultistepScheduler",
    "UniPCMultistepScheduler",
    "LMSDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
)
OTHERS = (
    "DDPMScheduler",
    "DPMSolverSDEScheduler",
    "EDMEulerScheduler",
    "EDMDPMSolverMultistepScheduler",
    "FlowMatchEulerDiscreteScheduler",
)
NAMES = (
    *("ddim", "pndm", "euler", "euler_ancestral", "dpmsolver++", "dpmsolver++_karras", "lcm"),
    *("dpmsolver++_singlestep", "tcd", "deis", "unipc", "lms", "heun", "kdpm2", "kdpm2_ancestral"),
)
FIELDS: dict[str, list[Any]] = {
    "beta_schedule": ["linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid", REMOVED],
    "beta_start": [0.00085, 0.0001, REMOVED],
    "beta_end": [0.012, 0.02, REMOVED],
    "trained_betas": [None, [0.0001 + 0.00002 * step for step in range(1000)]],
    "num_train_timesteps": [1000, 200],
    "prediction_type": ["epsilon", "v_prediction", "sample", REMOVED],
    "timestep_spacing": ["leading", "trailing", "linspace", REMOVED],
    "steps_offset": [0, 1, REMOVED],
    "set_alpha_to_one": [True, False, REMOVED],
    "clip_sample": [True, False, REMOVED],
    "clip_sample_range": [1.0, 0.5],
    "rescale_betas_zero_snr": [True, False],
    "use_karras_sigmas": [True, False],
    "use_exponential_sigmas": [True, False],
    "use_beta_sigmas": [True, False],
    "final_sigmas_type": ["zero", "sigma_min"],
    "solver_order": [1, 2, 3],
    "solver_type": ["midpoint", "heun", "bh1", "bh2", "logrho"],
    "algorithm_type": ["dpmsolver++", "sde-dpmsolver++", "dpmsolver"],
    "lower_order_final": [True, False],
    "euler_at_final": [True, False],
    "lambda_min_clipped": [-5.1, REMOVED],
    "thresholding": [True, False],
    "skip_prk_steps": [True, True, True, False, REMOVED],
    "interpolation_type": ["linear", "log_linear"],
    "timestep_type": ["discrete", "continuous"],
    "variance_type": ["fixed_small", "learned", None],
    "original_inference_steps": [50, 20],
    "timestep_scaling": [10.0, 5.0],
    "sigma_max": [None, 10.0],
    "_class_name": [*OURS, REMOVED],
    "_use_default_values": [["steps_offset"], []],
}


def change_scheduler(draft: Draft) -> None:
    """Change the class in model_index.json, and some fields of the file."""
    pick = draft.random.choice
    if draft.random.random() < 0.7:
        name = pick(OURS) if draft.random.random() < 0.85 else pick(OTHERS)
        draft.edit(INDEX, scheduler=["diffusers", name])
        if draft.random.random() < 0.6:
            draft.edit(SCHEDULER, _class_name=name)
        if name == "PNDMScheduler":
            draft.edit(SCHEDULER, skip_prk_steps=True)
    for name in draft.random.sample(sorted(FIELDS), pick([1, 1, 2, 3])):
        draft.edit(SCHEDULER, **{name: pick(FIELDS[name])})


def choose_scheduler(draft: Draft) -> None:
    """Let the job name a scheduler, perhaps with a file that lacks fields of that one's."""
    for name in ("clip_sample", "skip_prk_steps", "steps_offset"):
        if draft.random.random() < 0.25:
            draft.edit(SCHEDULER, **{name: REMOVED})
    draft.job.scheduler = draft.random.choice(NAMES)
    draft.note(f"the job names {draft.job.scheduler}")
