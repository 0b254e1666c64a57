"""Translate parameters of other tools to those of jobs: one table of names, one of schedulers.

Input: names and values as AUTOMATIC1111's web UI, ComfyUI, the API of OpenAI and others write them.
Output: parameters of jobs, and what has no equal here. This module reads no files.

Sources: https://github.com/AUTOMATIC1111/stable-diffusion-webui (scripts/prompts_from_file.py,
modules/infotext_utils.py, modules/sd_samplers_kdiffusion.py) and
https://github.com/comfyanonymous/ComfyUI (comfy/samplers.py, nodes.py).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Converter = Callable[[Any], Mapping[str, Any] | None]
"""Returns parameters of a job for a value; None if the value has no equal."""

_MAX_SEED_BITS: Final = 32
_SIZE: Final = re.compile(r"\s*(\d{1,9})\s*[x×*]\s*(\d{1,9})\s*", re.IGNORECASE)


def plain_name(name: str) -> str:
    """Return a name as the table spells it: `CFG scale` and `cfg-scale` are `cfg_scale`."""
    return re.sub(r"[\s/-]+", "_", name.strip().lstrip("-")).lower()


def _size(value: Any) -> Mapping[str, Any] | None:
    match = _SIZE.fullmatch(str(value))
    return None if match is None else {"width": int(match[1]), "height": int(match[2])}


def _seed(value: Any) -> Mapping[str, Any]:
    """A negative seed stands for a random one. ComfyUI draws seeds of 64 bits."""
    try:
        seed = int(str(value))
    except ValueError:
        return {"seed": value}
    return {} if seed < 0 else {"seed": seed % (1 << _MAX_SEED_BITS)}


def _last_layer(value: Any) -> Mapping[str, Any] | None:
    """The web UI counts the last layer that is used, from 1, and ComfyUI from -1."""
    try:
        skipped = abs(int(str(value))) - 1
    except ValueError:
        return None
    return {"clip_skip": skipped} if skipped > 0 else {}


def _scheduler(value: Any) -> Mapping[str, Any] | None:
    name = scheduler_called(str(value))
    return None if name is None else {"scheduler": name}


def _image_of_batch(value: Any) -> Mapping[str, Any] | None:
    """Our own images say which one of several they are, as in `image 2 of 4`."""
    match = re.fullmatch(r"image (\d{1,9}) of (\d{1,9})", str(value))
    if match is None:
        return None
    return {"image_index": int(match[1]) - 1, "num_images_per_prompt": int(match[2])}


def _format(value: Any) -> Mapping[str, Any]:
    name = str(value).lower()
    return {"format": "jpeg" if name == "jpg" else name}


@dataclass(frozen=True)
class ForeignName:
    """A row of the table: what a parameter of other tools is here."""

    ours: str
    """It names the parameter of a job, or several with `and` between. Empty: there is no equal."""
    note: str = ""
    """How values differ, for people."""
    convert: Converter | None = None
    """None: the value stays as it is."""
    is_word: bool = False
    """Whether it is also an ordinary word, so that a column of this name may mean anything."""
    neutral: tuple[str, ...] = ()
    """Values without an effect, of a parameter that has no equal."""
    detail_of: str = ""
    """It names a parameter that has no equal. Without that one, this one has no effect."""


_STEPS: Final = ForeignName("num_inference_steps")
_GUIDANCE: Final = ForeignName("guidance_scale")
_SCHEDULER: Final = ForeignName("scheduler", "Euler a is euler_ancestral", _scheduler)
_COUNT: Final = ForeignName("num_images_per_prompt")
_PROMPT: Final = ForeignName("prompt", is_word=True)
_RESCALE: Final = ForeignName("guidance_rescale")
_MODEL: Final = ForeignName("model")
_NEGATIVE: Final = ForeignName("negative_prompt")
_SEED: Final = ForeignName("seed", "leave it out in the place of -1", _seed)
_LAYER: Final = ForeignName("clip_skip", "the last layer, 1 or -1 there, is 0 or None", _last_layer)
_OFF: Final = ("", "0", "0.0", "false", "none", "null", "[]", "{}")
_NONE: Final = ForeignName("", neutral=_OFF)
_NO_SIZE: Final = ForeignName("", neutral=(*_OFF, "-1"))
_FACTOR: Final = ForeignName("", neutral=(*_OFF, "1", "1.0"))

FOREIGN_NAMES: Final[Mapping[str, ForeignName]] = {
    **dict.fromkeys(("steps", "num_steps", "sampling_steps", "ddim_steps", "n_steps"), _STEPS),
    **dict.fromkeys(("step", "inference_steps", "sample_steps"), _STEPS),
    **dict.fromkeys(("cfg_scale", "cfg", "cfgscale", "guidance", "unconditional_scale"), _GUIDANCE),
    "scale": ForeignName("guidance_scale", is_word=True),
    **dict.fromkeys(("sampler", "sampler_name", "sampler_index", "sample_method"), _SCHEDULER),
    **dict.fromkeys(("n_iter", "batch_size", "batch_count", "num_images", "n_samples"), _COUNT),
    **dict.fromkeys(("num_outputs", "num_samples", "images_per_prompt"), _COUNT),
    "n": ForeignName("num_images_per_prompt", is_word=True),
    "batch": ForeignName("num_images_per_prompt and image_index", "", _image_of_batch, True),
    "size": ForeignName("height and width", "two numbers of pixels", _size, True),
    "resolution": ForeignName("height and width", "two numbers of pixels", _size, True),
    "w": ForeignName("width", is_word=True),
    "h": ForeignName("height", is_word=True),
    **dict.fromkeys(("text", "caption", "positive", "input", "description"), _PROMPT),
    **dict.fromkeys(("positive_prompt", "text_prompt", "prompt_text"), ForeignName("prompt")),
    **dict.fromkeys(("neg_prompt", "negativeprompt", "uc", "n_prompt"), _NEGATIVE),
    "negative": ForeignName("negative_prompt", is_word=True),
    **dict.fromkeys(("seed", "noise_seed", "random_seed", "manual_seed"), _SEED),
    "generator": ForeignName("seed", "a whole number", is_word=True),
    **dict.fromkeys(("stop_at_clip_layer", "clip_stop_at_last_layers"), _LAYER),
    **dict.fromkeys(("denoising_strength", "denoise", "prompt_strength"), ForeignName("strength")),
    **dict.fromkeys(("init_image", "input_image", "init_images"), ForeignName("image")),
    "mask": ForeignName("mask_image", is_word=True),
    "image_cfg_scale": ForeignName("image_guidance_scale"),
    **dict.fromkeys(("cfg_rescale", "rescale_cfg", "guidance_rescale_phi"), _RESCALE),
    **dict.fromkeys(("lora", "lora_weights", "lora_name"), ForeignName("loras", "as in style:0.8")),
    **dict.fromkeys(("sd_model", "ckpt_name", "model_id", "sd_model_checkpoint"), _MODEL),
    "checkpoint": ForeignName("model", is_word=True),
    **dict.fromkeys(("webhook", "webhook_url"), ForeignName("callback_url", is_word=True)),
    **dict.fromkeys(("output_format", "image_format"), ForeignName("format", is_word=True)),
    "samples_format": ForeignName("format", "jpg is jpeg", _format),
    "sd_vae": ForeignName("", neutral=(*_OFF, "automatic")),
    **dict.fromkeys(
        (
            *("restore_faces", "face_restoration", "tiling", "subseed_strength", "styles"),
            *("variation_seed_strength", "seed_resize_from", "eta", "ensd", "eta_noise_seed_delta"),
            *("s_churn", "s_tmin", "s_tmax", "s_min_uncond", "enable_hr", "refiner_checkpoint"),
            *("override_settings", "alwayson_scripts", "script_name", "disable_extra_networks"),
            *("comments", "infotext", "resize_mode", "latent_mask"),
        ),
        _NONE,
    ),
    **dict.fromkeys(("seed_resize_from_h", "seed_resize_from_w"), _NO_SIZE),
    **dict.fromkeys(("s_noise", "initial_noise_multiplier"), _FACTOR),
    **dict.fromkeys(
        (
            *("hr_scale", "hr_upscaler", "hr_second_pass_steps", "hr_resize_x", "hr_resize_y"),
            *("hr_checkpoint_name", "hr_sampler_name", "hr_scheduler", "hr_prompt"),
            *("hr_negative_prompt", "firstphase_width", "firstphase_height", "firstpass_image"),
        ),
        ForeignName("", detail_of="enable_hr"),
    ),
    "refiner_switch_at": ForeignName("", detail_of="refiner_checkpoint"),
    "script_args": ForeignName("", detail_of="script_name"),
    "subseed": ForeignName("", detail_of="subseed_strength"),
    "variation_seed": ForeignName("", detail_of="variation_seed_strength"),
}
"""It holds the parameters of other tools by `plain_name`."""

_KARRAS: Final = "karras"
SAMPLER_NAMES: Final[Mapping[str, str]] = {
    "ddim": "DDIM",
    "pndm": "PLMS",
    "euler": "Euler",
    "euler_ancestral": "Euler a",
    "dpmsolver++": "DPM++ 2M",
    "dpmsolver++_karras": "DPM++ 2M Karras",
    "lcm": "LCM",
    "unipc": "UniPC",
    "lms": "LMS",
    "deis": "DEIS",
    "heun": "Heun",
    "kdpm2": "DPM2",
    "kdpm2_ancestral": "DPM2 a",
}
"""It holds the web UI's names of schedulers, which viewers of generated images know, by ours."""
_SCHEDULERS: Final[Mapping[str, tuple[str, ...]]] = {
    "euler_ancestral": ("k_euler_a", "euler_a", "eulerancestraldiscrete"),
    "euler": ("k_euler", "eulerdiscrete"),
    "dpmsolver++": ("k_dpmpp_2m", "dpmpp_2m", "dpmsolvermultistep"),
    "dpmsolver++_karras": ("k_dpmpp_2m_ka", "dpmpp_2m_karras"),
    "dpmsolver++_singlestep": ("dpmsolversinglestep",),
    "ddim": (),
    "pndm": (),
    "lcm": ("k_lcm",),
    "deis": ("deismultistep",),
    "unipc": ("uni_pc", "unipcmultistep", "uni_pc_bh2"),
    "lms": ("k_lms", "lmsdiscrete"),
    "heun": ("k_heun", "heundiscrete"),
    "kdpm2": ("k_dpm_2", "dpm_2", "kdpm2discrete"),
    "kdpm2_ancestral": ("k_dpm_2_a", "dpm_2_ancestral", "kdpm2ancestraldiscrete"),
    "tcd": (),
    "edm_euler": ("edmeuler",),
    "edm_dpmsolver++": ("edmdpmsolvermultistep",),
}
"""It lists aliases of the web UI's samplers, those of ComfyUI, and the classes of diffusers, by our
name."""


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower()).removesuffix("scheduler")


_OUR_SCHEDULER: Final = {
    _key(name): ours
    for ours, names in _SCHEDULERS.items()
    for name in (ours, SAMPLER_NAMES.get(ours, ours), *names)
}


def scheduler_called(name: str, schedule: str = "") -> str | None:
    """Return our name of a sampler of another tool, or of a class of diffusers; None if there is
    none.

    Args:
        schedule: the noise levels, where the tool names them apart: `Karras`.
    """
    if schedule.strip().lower() == _KARRAS:
        return _OUR_SCHEDULER.get(_key(f"{_key(name).removesuffix(_KARRAS)}_{_KARRAS}"))
    return _OUR_SCHEDULER.get(_key(name))


def scheduler_hint(name: object) -> str | None:
    """Return how a scheduler of another tool is called here; None for other names."""
    ours = scheduler_called(str(name))
    return None if ours in (None, name) else f"is called {ours} here"


def hint(name: str, known: Mapping[str, str]) -> str | None:
    """Return how a parameter of another tool is called here; None if the name is not in the table.

    Args:
        known: the parameters that can be given in this place, and how they are spelled there.
    """
    foreign = FOREIGN_NAMES.get(plain_name(name))
    if foreign is None or foreign.ours == plain_name(name):
        return None
    if not foreign.ours:
        return "has no equal here"
    ours = foreign.ours.split(" and ")
    if any(each not in known for each in ours):
        return None
    called = f"is called {' and '.join(known[each] for each in ours)} here"
    return f"{called} ({foreign.note})" if foreign.note else called
