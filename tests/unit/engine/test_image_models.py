"""Models that need an image: inpainting, instruct-pix2pix, SDXL's refiner."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.default_strengths import NO_STRENGTH, STABLE_DIFFUSION_XL
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageArray, ImageSpec, Shape, Stream
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.parity import write_known
from tools.parity.known.checkpoints import KNOWN
from tools.parity.known.write import init_image, inpaint_mask, write_configs

SIDE: Final = 64
REFINER: Final = "stabilityai/stable-diffusion-xl-refiner-1.0"
SHAPE: Final = Shape(height=SIDE, width=SIDE)
TWO_LEVELS: Final = {
    "block_out_channels": [8, 16],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "layers_per_block": 1,
}
"""`test_known_checkpoints` has the models with all their levels."""
MODELS: Final = {
    "stable-diffusion-inpainting": "runwayml/stable-diffusion-inpainting",
    "instruct-pix2pix": "timbrooks/instruct-pix2pix",
}


@pytest.mark.parametrize("name", ["stable-diffusion-inpainting", "instruct-pix2pix"])
def test_images_of_both_policies_depend_on_their_own_image_only(
    name: str, tmp_path: Path, cache_dir: Path
) -> None:
    folder = _write(tmp_path, MODELS[name])
    engine = load_engine(
        str(folder), shapes=[SHAPE], devices=1, per_device_batch=2, cache_dir=cache_dir
    )
    assert isinstance(engine, DiffusionEngine)
    engine.warm()
    first, second = _specs(engine)
    together = engine.start_batch([first, second], SHAPE).images()
    # Alone, the job without guidance runs the step without guidance, which rounds otherwise.
    alone = engine.start_batch([second], SHAPE).images()
    assert np.abs(alone[0].astype(int) - together[1]).max() <= 1
    other_image = replace(second, init_image=_init_image(engine, pixels=together[0]))
    other = engine.start_batch([other_image], SHAPE).images()
    assert np.abs(other.astype(int) - alone).max() > 1

    [stream] = engine.open_streams()
    streamed = [_run(stream, spec) for spec in (first, second)]
    assert np.abs(np.asarray(streamed, int) - together).max() <= 1
    assert engine.recompiles == 0


@pytest.mark.parametrize(
    ("pipeline", "channels", "message"),
    [
        ("StableDiffusionPipeline", 9, "in_channels=9 is a UNet of inpainting, but the pipeline"),
        ("StableDiffusionPipeline", 8, "in_channels=8 is a UNet of instruct-pix2pix, but the pip"),
        ("StableDiffusionInpaintPipeline", 4, "in_channels=4 is an ordinary UNet, which can inp"),
        (
            "StableDiffusionInpaintPipeline",
            8,
            "a mask and a masked image, so in_channels must be 9",
        ),
        ("StableDiffusionInstructPix2PixPipeline", 9, "an image to edit, so in_channels must be 8"),
        (
            "StableDiffusionInpaintPipeline",
            6,
            "channels of its input must be equal but are 6 and 9",
        ),
    ],
)
def test_a_unet_that_its_pipeline_cannot_feed_is_refused(
    pipeline: str, channels: int, message: str, tmp_path: Path
) -> None:
    checkpoint = KNOWN["CompVis/stable-diffusion-v1-4"]
    unet = {**checkpoint.unet, "in_channels": channels}
    write_configs(tmp_path, replace(checkpoint, pipeline=pipeline, unet=unet))
    with pytest.raises(CheckpointError, match=message):
        Configs.read(CheckpointFiles(tmp_path))


def test_an_edited_image_with_an_embedded_guidance_scale_is_refused(tmp_path: Path) -> None:
    checkpoint = KNOWN["timbrooks/instruct-pix2pix"]
    unet = {**checkpoint.unet, "time_cond_proj_dim": 256}
    write_configs(tmp_path, replace(checkpoint, unet=unet))
    with pytest.raises(CheckpointError, match="time_cond_proj_dim is set, but the pipeline"):
        Configs.read(CheckpointFiles(tmp_path))


@pytest.mark.parametrize("field", ["requires_aesthetics_score", "is_cosxl_edit"])
def test_a_field_that_would_change_the_image_is_refused(field: str, tmp_path: Path) -> None:
    write_configs(tmp_path, KNOWN["diffusers/sdxl-instructpix2pix-768"])
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {field: True}))
    with pytest.raises(CheckpointError, match=f"{field} is True; it must be false"):
        Configs.read(CheckpointFiles(tmp_path))


def test_the_refiner_continues_an_image_and_reads_the_prompt_with_one_encoder(
    tmp_path: Path,
) -> None:
    write_configs(tmp_path, KNOWN[REFINER])
    pipeline = Configs.read(CheckpointFiles(tmp_path)).pipeline
    use = ImageUse(required=("image",), default_strengths=STABLE_DIFFUSION_XL)
    assert pipeline.image_use == use
    assert (pipeline.text_encoders, pipeline.tokenizers) == (("text_encoder_2",), ("tokenizer_2",))


def test_the_pipeline_of_the_refiner_also_runs_the_networks_of_sdxl(tmp_path: Path) -> None:
    base = KNOWN["stabilityai/stable-diffusion-xl-base-1.0"]
    write_configs(tmp_path, replace(base, pipeline=KNOWN[REFINER].pipeline))
    pipeline = Configs.read(CheckpointFiles(tmp_path)).pipeline
    assert pipeline.text_encoders == ("text_encoder", "text_encoder_2")
    assert not pipeline.has_aesthetic_scores


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requires_aesthetics_score": False}, "pooled text, text projection_dim must be equal"),
        ({"requires_aesthetics_score": "yes"}, "'yes'; it must be true or false"),
        (
            {"text_encoder": ["transformers", "CLIPTextModel"]},
            "tokenizer is missing, which a StableDiffusionXLImg2ImgPipeline needs",
        ),
        (
            {"text_encoder_2": ["transformers", "CLIPTextModel"]},
            "runs CLIPTextModelWithProjection of",
        ),
    ],
)
def test_a_refiner_that_contradicts_itself_is_refused(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    write_configs(tmp_path, KNOWN[REFINER])
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | fields))
    with pytest.raises(CheckpointError, match=message):
        Configs.read(CheckpointFiles(tmp_path))


def _write(folder: Path, name: str) -> Path:
    checkpoint = replace(KNOWN[name], unet={**KNOWN[name].unet, **TWO_LEVELS})
    write_known(folder, checkpoint)
    return folder


def _specs(engine: DiffusionEngine) -> list[ImageSpec]:
    guided = ImageSpec(
        prompt="a red circle",
        negative_prompt="blue",
        seed=7,
        num_inference_steps=4,
        guidance_scale=3.0,
        image_guidance_scale=engine.info.image_use.default_image_guidance_scale,
        scheduler="euler",
        init_image=_init_image(engine, pixels=init_image(SIDE)),
    )
    turned = _init_image(engine, pixels=init_image(SIDE)[::-1].copy())
    return [guided, replace(guided, guidance_scale=1.0, scheduler="ddim", init_image=turned)]


def _init_image(engine: DiffusionEngine, pixels: ImageArray) -> InitImage:
    takes_strength = engine.info.image_use.default_strengths != NO_STRENGTH
    mask = inpaint_mask(SIDE) if "mask_image" in engine.info.image_use.required else None
    return InitImage(
        pixels=pixels,
        mask_levels=mask,
        strength=0.7 if takes_strength else 1.0,
        digest="sha256:0",
    )


def _run(stream: Stream, spec: ImageSpec) -> ImageArray:
    stream.start(0, spec, SHAPE)
    while not stream.step():
        pass
    return stream.finish(0)().pixels
