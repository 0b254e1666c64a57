"""Requests of AUTOMATIC1111's API become parameters of jobs, or are refused by name."""

import base64
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.webui.generation_request import GenerationRequest
from imagefleet.producer.gateway.webui.start_images import StartImages

ALL_DEFAULTS: dict[str, Any] = {
    "prompt": "a",
    "negative_prompt": "",
    "styles": [],
    "seed": -1,
    "subseed": -1,
    "subseed_strength": 0,
    "seed_resize_from_h": -1,
    "seed_resize_from_w": -1,
    "sampler_name": None,
    "scheduler": None,
    "batch_size": 1,
    "n_iter": 1,
    "steps": 50,
    "cfg_scale": 7.0,
    "width": 512,
    "height": 512,
    "restore_faces": None,
    "tiling": None,
    "do_not_save_samples": False,
    "do_not_save_grid": False,
    "eta": None,
    "denoising_strength": 0,
    "s_min_uncond": None,
    "s_churn": None,
    "s_tmax": None,
    "s_tmin": None,
    "s_noise": None,
    "override_settings": {},
    "override_settings_restore_afterwards": True,
    "refiner_checkpoint": None,
    "refiner_switch_at": None,
    "disable_extra_networks": False,
    "comments": {},
    "enable_hr": False,
    "firstphase_width": 0,
    "firstphase_height": 0,
    "hr_scale": 2.0,
    "hr_upscaler": "Latent",
    "hr_second_pass_steps": 0,
    "hr_resize_x": 0,
    "hr_resize_y": 0,
    "hr_checkpoint_name": None,
    "hr_sampler_name": None,
    "hr_scheduler": None,
    "hr_prompt": "",
    "hr_negative_prompt": "",
    "force_task_id": None,
    "sampler_index": "Euler",
    "script_name": None,
    "script_args": [],
    "send_images": True,
    "save_images": False,
    "alwayson_scripts": {},
    "infotext": None,
}
"""The fields of txt2img with the defaults that the web UI documents (modules/api/models.py)."""


def _parameters(**fields: Any) -> dict[str, Any]:
    return dict(GenerationRequest.parse({"prompt": "a", **fields}, has_image=False).parameters)


def test_a_request_with_all_defaults_asks_for_nothing_else() -> None:
    assert _parameters(**ALL_DEFAULTS) == {
        "prompt": "a",
        "negative_prompt": "",
        "num_images_per_prompt": 1,
        "num_inference_steps": 50,
        "guidance_scale": 7.0,
        "width": 512,
        "height": 512,
        "scheduler": "euler",
    }


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -1}, {}),
        ({"n_iter": 2, "batch_size": 3}, {"num_images_per_prompt": 6}),
        ({"sampler_name": "Euler a"}, {"scheduler": "euler_ancestral"}),
        ({"sampler_name": "DPM++ 2M Karras"}, {"scheduler": "dpmsolver++_karras"}),
        ({"sampler_name": "DPM++ 2M", "scheduler": "karras"}, {"scheduler": "dpmsolver++_karras"}),
        ({"sampler_name": "DPM++ 2M", "scheduler": "Automatic"}, {"scheduler": "dpmsolver++"}),
        (
            {"sampler_name": "DPM++ 2M Karras", "scheduler": "Karras"},
            {"scheduler": "dpmsolver++_karras"},
        ),
        ({"sampler_name": "euler_a", "scheduler": "discrete"}, {"scheduler": "euler_ancestral"}),
        ({"sampler_name": "dpm++2m"}, {"scheduler": "dpmsolver++"}),
        ({"sampler_name": ""}, {}),
        ({"override_settings": {"sd_model_checkpoint": "sdxl"}}, {"model": "sdxl"}),
        ({"override_settings": {"CLIP_stop_at_last_layers": 2}}, {"clip_skip": 1}),
        ({"override_settings": {"CLIP_stop_at_last_layers": 1}, "clip_skip": 1}, {}),
        ({"clip_skip": 3}, {"clip_skip": 2}),
        ({"override_settings": {"samples_format": "jpg"}}, {"format": "jpeg"}),
        ({"override_settings": {"sd_vae": "Automatic"}}, {}),
        ({"denoising_strength": 0.7, "hr_scale": 2, "hr_upscaler": "Latent"}, {}),
        ({"prompt": "a <lora:style:0.8>"}, {"loras": "style:0.8"}),
        ({"priority": 5, "preview": True}, {"priority": 5, "preview": True}),
        ({"url": "http://127.0.0.1:7860", "auth": "user:secret"}, {}),
    ],
)
def test_a_field_becomes_a_parameter_of_the_job(
    fields: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert _parameters(**fields) == {"prompt": "a", **ours}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"enable_hr": True}, "enable_hr"),
        ({"tiling": True}, "tiling"),
        ({"restore_faces": True}, "restore_faces"),
        ({"refiner_checkpoint": "sdxl-refiner"}, "refiner_checkpoint"),
        ({"alwayson_scripts": {"controlnet": {"args": [{}]}}}, "alwayson_scripts"),
        ({"script_name": "x/y/z plot"}, "script_name"),
        ({"styles": ["anime"]}, "styles"),
        ({"subseed_strength": 0.3}, "subseed_strength"),
        ({"sampler_name": "DPM++ SDE"}, "sampler_name"),
        ({"sampler_name": "Euler a", "scheduler": "karras"}, "scheduler"),
        ({"override_settings": {"sd_vae": "other.pt"}}, "sd_vae"),
        ({"override_settings": {"eta_noise_seed_delta": 31337}}, "eta_noise_seed_delta"),
        ({"override_settings": 3}, "override_settings"),
        ({"prompt": "a <hypernet:other:1>"}, "prompt"),
        ({"prompt": "a" * 4_001}, "prompt"),
        ({"stepz": 3}, "stepz"),
    ],
)
def test_what_has_no_equal_and_would_change_the_image_is_refused(
    fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(Problem) as caught:
        _parameters(**fields)
    assert (caught.value.status, caught.value.field) == (400, name)
    assert caught.value.message.startswith(f"{name}=")


def test_a_sampler_that_is_none_is_answered_with_where_the_others_are_listed() -> None:
    with pytest.raises(Problem, match="GET /sdapi/v1/samplers lists"):
        _parameters(sampler_name="Nonsense")


def test_the_answer_repeats_the_fields_but_no_secrets() -> None:
    request = GenerationRequest.parse({"prompt": "a", "auth": "user:secret"}, has_image=False)
    assert request.echo == {"prompt": "a"}


def test_the_strength_counts_only_beside_an_image() -> None:
    fields = {"prompt": "a", "denoising_strength": 0.5}
    assert GenerationRequest.parse(fields, has_image=True).parameters["strength"] == 0.5


def _base64(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _half_white() -> Image.Image:
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 64))
    return mask


def _mask(fields: dict[str, Any]) -> Image.Image:
    start = StartImages.take({"init_images": [_base64(Image.new("RGB", (64, 64)))], **fields})
    mask = start.parameters()["mask_image"]
    assert isinstance(mask, bytes)
    return Image.open(BytesIO(mask))


@pytest.mark.parametrize(("invert", "sides"), [(0, (255, 0)), (1, (0, 255))])
def test_the_white_part_of_a_mask_is_generated_anew_unless_it_is_inverted(
    invert: int, sides: tuple[int, int]
) -> None:
    mask = _mask({"mask": _base64(_half_white()), "inpainting_mask_invert": invert})
    assert (mask.getpixel((5, 5)), mask.getpixel((60, 5))) == sides


def test_the_opaque_part_of_a_transparent_mask_is_generated_anew() -> None:
    image = Image.new("RGBA", (64, 64), "black")
    image.putalpha(_half_white())
    mask = _mask({"mask": f"data:image/png;base64,{_base64(image)}"})
    assert (mask.getpixel((5, 5)), mask.getpixel((60, 5))) == (255, 0)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"init_images": []}, "init_images"),
        ({"init_images": None}, "init_images"),
        ({"init_images": ["a", "b"]}, "init_images"),
        ({"init_images": ["no base64"]}, "init_images"),
        ({"init_images": [7]}, "init_images"),
        ({"mask": "http://example.org/mask.png"}, "mask"),
        ({"mask": "bm8gaW1hZ2U="}, "mask"),
        ({"mask": "AAAA", "inpainting_fill": 0}, "inpainting_fill"),
        ({"mask": "AAAA", "inpaint_full_res": True}, "inpaint_full_res"),
        ({"mask": "AAAA", "inpainting_mask_invert": 2}, "inpainting_mask_invert"),
    ],
)
def test_wrong_images_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(Problem) as caught:
        StartImages.take({"init_images": ["AAAA"], **fields}).parameters()
    assert (caught.value.status, caught.value.field) == (400, name)


def test_details_of_a_mask_say_nothing_without_one() -> None:
    fields: dict[str, Any] = {"init_images": ["AAAA"], "inpainting_fill": 0, "mask_blur": 4}
    assert StartImages.take(fields).parameters() == {"image": b"\0\0\0"}
    assert not fields
