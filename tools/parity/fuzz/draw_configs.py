"""Draw changes of model_index.json and of the networks' configs."""

from typing import Any

from tools.parity.fuzz.draft import INDEX, REMOVED, Draft

CLASSES: dict[str, list[Any]] = {
    "unet": [["diffusers", "UNetMotionModel"], ["diffusers", "UNet2DModel"], [None, None]],
    "vae": [["diffusers", "AutoencoderTiny"], ["diffusers", "AsymmetricAutoencoderKL"]],
    "text_encoder": [
        ["transformers", "CLIPTextModelWithProjection"],
        ["transformers", "T5EncoderModel"],
        [None, None],
    ],
    "text_encoder_2": [["transformers", "CLIPTextModel"], [None, None]],
    "tokenizer": [["transformers", "CLIPTokenizerFast"], ["transformers", "T5Tokenizer"]],
    "safety_checker": [["stable_diffusion", "StableDiffusionSafetyChecker"]],
    "scheduler": [["diffusers", "NoSuchScheduler"], ["transformers", "DDIMScheduler"]],
    "image_encoder": [[None, None]],
    "controlnet": [[None, None], ["diffusers", "ControlNetModel"]],
}
FREE_UNET: dict[str, list[Any]] = {
    "flip_sin_to_cos": [True, False],
    "freq_shift": [0, 1],
    "norm_eps": [1e-5, 1e-3],
    "act_fn": ["silu", "swish", "gelu", "mish"],
    "sample_size": [None, 4, 8, [8, 8], [8, 16], "8"],
    "center_input_sample": [False, True],
    "upcast_attention": [None, True],
    "dropout": [0.0, 0.3],
    "only_cross_attention": [False, True, [False, False], [False, False, False]],
    "mid_block_only_cross_attention": [None, False, True],
    "resnet_out_scale_factor": [1.0, 2.0],
    "mid_block_scale_factor": [1, 1.0, 2],
    "resnet_time_scale_shift": ["default", "scale_shift"],
    "time_embedding_act_fn": [None, "silu"],
    "timestep_post_act": [None, "silu"],
    "downsample_padding": [1, 0],
    "use_linear_projection": [True, False],
    "dual_cross_attention": [False, True],
    "num_attention_heads": [None, 2],
    "reverse_transformer_layers_per_block": [None, [1, 1, 1]],
    "encoder_hid_dim_type": [None, "text_proj"],
    "norm_num_groups": [4, 8, 3],
    "attention_head_dim": [1, 2, 4, [2, 4], [1, 2, 4], 3],
    "_diffusers_version": ["0.6.0", "0.8.1", "0.9.0"],
    "_class_name": ["UNetMotionModel", "UNet2DConditionModel"],
    "block_out_channels": [REMOVED],
    "down_block_types": [REMOVED],
    "unknown_field": [1],
}
"""Fields of unet/config.json that leave the names and shapes of the weights as they are."""
FREE_VAE: dict[str, list[Any]] = {
    "act_fn": ["silu", "swish", "relu"],
    "scaling_factor": [0.5, 1.0, REMOVED],
    "shift_factor": [None, 0.0, 0.1],
    "latents_mean": [None, [0.1, 0.0, 0.0, 0.2]],
    "force_upcast": [True, False],
    "sample_size": [32, 512],
    "norm_num_groups": [4, 2],
    "mid_block_add_attention": [True, False],
    "use_quant_conv": [True, False],
    "down_block_types": [REMOVED],
    "_class_name": ["AutoencoderTiny", "AutoencoderKL"],
}
FREE_TEXT: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "quick_gelu", "relu", "gelu_new"],
    "layer_norm_eps": [1e-5, 1e-3],
    "num_attention_heads": [1, 2, 4],
    "eos_token_id": [2, 0, 5, 49407, [2, 3], REMOVED],
    "bos_token_id": [0, 7],
    "pad_token_id": [0, 1],
    "use_attention_mask": [True, False],
    "projection_dim": [12, 512, None],
    "architectures": [["CLIPTextModelWithProjection"], ["CLIPTextModel"], REMOVED],
    "model_type": ["clip_text_model", "clip", REMOVED],
    "attention_dropout": [0.0, 0.5],
    "vocab_size": [520, 600],
    "max_position_embeddings": [77, 32],
    "num_hidden_layers": [1, 2, 3],
    "torch_dtype": ["float16", "float32"],
    "transformers_weights": ["other.safetensors"],
    "output_hidden_states": [True],
}


def change_class(draft: Draft) -> None:
    """Name another class for a part."""
    part = draft.random.choice([name for name in CLASSES if draft.is_xl or name[-2:] != "_2"])
    draft.edit(INDEX, **{part: draft.random.choice(CLASSES[part])})


def change_index(draft: Draft) -> None:
    """Change a field of model_index.json that is no part."""
    fields: dict[str, list[Any]] = {
        "force_zeros_for_empty_prompt": [REMOVED, True, False],
        "requires_safety_checker": [True, False],
        "add_watermarker": [None, False],
        "_class_name": ["StableDiffusionXLPipeline", "StableDiffusionInpaintPipeline", REMOVED],
        "_diffusers_version": ["0.8.0", REMOVED],
        "scheduler": [REMOVED],
    }
    names = sorted(fields)
    name = draft.random.choice([*names, *["force_zeros_for_empty_prompt"] * 4 * draft.is_xl])
    draft.edit(INDEX, **{name: draft.random.choice(fields[name])})


def change_network_config(draft: Draft) -> None:
    """Change a field of a network's config, but not its weights."""
    kinds = {"unet": FREE_UNET, "vae": FREE_VAE, "text_encoder": FREE_TEXT}
    if draft.is_xl:
        kinds["text_encoder_2"] = FREE_TEXT
    part = draft.random.choice(list(kinds))
    name = draft.random.choice(list(kinds[part]))
    value = draft.random.choice(kinds[part][name])
    draft.edit(f"{part}/config.json", **{name: value})
    if name == "sample_size" and draft.random.random() < 0.7:
        draft.job.side = None


def change_structure(draft: Draft) -> None:
    """Draw another UNet, whose weights diffusers then draws. Only Stable Diffusion 1 and 2."""
    pick = draft.random.choice
    levels = pick([2, 3])
    attends = [pick([True, False]) for _ in range(levels)]
    up = [pick([True, False]) for _ in range(levels)] if pick([0, 1]) else attends[::-1]
    fields = {
        "block_out_channels": sorted(pick([8, 16, 24]) for _ in range(levels)),
        "down_block_types": ["CrossAttnDownBlock2D" if each else "DownBlock2D" for each in attends],
        "up_block_types": ["CrossAttnUpBlock2D" if each else "UpBlock2D" for each in up],
        "mid_block_type": pick(["UNetMidBlock2DCrossAttn"] * 3 + ["UNetMidBlock2D", None]),
        "layers_per_block": pick([1, 2, [1, 2, 1][:levels]]),
        "transformer_layers_per_block": pick([1, 2, 0, [1, 0, 2][:levels], [2, 1, 1][:levels]]),
        "attention_head_dim": pick([1, 2, [1, 2, 4][:levels]]),
        "norm_num_groups": pick([4, 8]),
        "use_linear_projection": pick([True, False]),
        "only_cross_attention": pick([False, [False] * levels]),
        "in_channels": pick([4] * 7 + [9]),
    }
    draft.edit("unet/config.json", **fields)
    draft.network = "unet"
