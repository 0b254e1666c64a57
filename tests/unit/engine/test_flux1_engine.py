"""An engine of FLUX.1 makes the images of diffusers, in whole batches and in streams.

Some have mixtures of LoRA of their own.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.parameter_types import GIVEN_EMPTY
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora import read_loras
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.families.flux1.parts import TRANSFORMER
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.unit.engine.flow_family import FLUX1, SLOTS
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import stored_shapes
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.flux1_case import (
    FILL,
    KONTEXT,
    TRUE_GUIDANCES,
    Variant,
    write_configs,
)
from tools.parity.flow.flux1_loras import CASES
from tools.parity.known.write import init_image


def _guided_specs() -> dict[str, ImageSpec]:
    """Return the images that diffusers made with `true_cfg_scale`."""
    plain = FLUX1.specs()["image|3.5"]
    return {
        name: replace(plain, true_cfg_scale=scale, negative_prompt=negative or GIVEN_EMPTY)
        for name, (scale, negative) in TRUE_GUIDANCES.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FLUX1.write_with_loras(tmp_path_factory.mktemp("flux1") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with FLUX1.engine(folder) as engine:
        yield engine


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    """Each has the guidance scale of its own as an input. A negative prompt alone has no effect,
    and `true_cfg_scale` has none without a negative prompt."""
    (stream,) = engine.open_streams()
    specs = FLUX1.specs()
    other = replace(specs["image|3.5"], num_inference_steps=7)
    negative = replace(specs["image|3.5"], negative_prompt="a blue star")
    scaled = replace(specs["image|3.5"], true_cfg_scale=4.0)
    mixed = FLUX1.lora_specs() | _guided_specs()
    first, _, *others = run_stream(
        stream,
        FLUX1.shape,
        SLOTS,
        [specs["image|1.0"], other, specs["image|3.5"], negative, scaled, *mixed.values()],
    )
    FLUX1.check([first, *others], ["image|1.0", *["image|3.5"] * 3, *mixed])
    assert engine.recompiles == 0
    assert engine.truncated(replace(other, prompt="red " * 512))
    _require_offers(engine)


def _require_offers(engine: DiffusionEngine) -> None:
    """Require the defaults and the parameters that diffusers' pipeline has."""
    info = engine.info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (8, 3.5)
    assert (info.default_scheduler, info.max_clip_skip, info.latents) == ("euler", 0, None)
    assert set(info.schedulers) == {"euler", "heun", "dpmsolver++", "unipc", "lcm"}


def test_an_image_without_true_cfg_scale_encodes_one_text(engine: DiffusionEngine) -> None:
    """Its second text is its prompt again, of which the cache of texts has the states."""
    guided = _guided_specs()["guided"]
    inputs = engine._input_builder.inputs(
        [replace(guided, true_cfg_scale=1.0), guided], FLUX1.shape
    )
    for tokens in inputs.tokens:
        plain, both = tokens[:, :, 0]
        assert (plain[0] == plain[1]).all()
        assert (both[0] != both[1]).any()
    assert inputs.true_guidance.tolist() == [1.0, guided.true_cfg_scale]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("clip_skip", 1),
        ("guidance_rescale", 0.5),
        ("cfg_truncation", 0.5),
        ("denoising_end", 0.5),
        ("prompt_weighting", True),
    ],
)
def test_parameters_that_the_family_lacks_are_refused(
    engine: DiffusionEngine, parameter: str, value: Any
) -> None:
    offer = offer_of(engine.info)
    with pytest.raises(InvalidRequest, match=f"^{parameter}"):
        admit(JobRequest.parse({"prompt": "a", parameter: value}), {"default": offer})


def test_images_of_a_whole_batch_are_those_of_diffusers(engine: DiffusionEngine) -> None:
    first, *others = _guided_specs().items()
    specs = [*others, *FLUX1.specs().items(), *FLUX1.lora_specs().items(), first]
    FLUX1.check_whole_batches(engine, dict(specs))
    FLUX1.check_bits(engine, list(FLUX1.lora_specs().values()))
    FLUX1.check_bits(engine, list(_guided_specs().values()))


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    FLUX1.check_split(folder, devices, FLUX1.specs() | FLUX1.lora_specs() | _guided_specs())


def test_images_with_and_without_a_reference_image_share_a_stream(tmp_path: Path) -> None:
    """FLUX.1 Kontext makes the images of FLUX.1 dev where a slot has no image."""
    folder = FLUX1.write(tmp_path / "model", KONTEXT)
    with FLUX1.engine(folder, options=ModelOptions()) as engine:
        use = engine.info.image_use
        assert (use.takes_image, use.required, use.default_strengths.image) == (True, (), None)
        plain = FLUX1.specs()["image|3.5"]
        pixels = init_image(FLUX1.shape.width)[: FLUX1.shape.height]
        image = InitImage(pixels=pixels, strength=1.0, digest="")
        guided = _guided_specs()["guided"]
        specs = [replace(plain, init_image=image), plain, replace(plain, init_image=image), plain]
        specs += [replace(guided, init_image=image), guided]
        (stream,) = engine.open_streams()
        images = run_stream(stream, FLUX1.shape, SLOTS, specs)
        FLUX1.check(images, [*["kontext", "image|3.5"] * 2, "kontext, guided", "guided"])
        assert engine.recompiles == 0


def test_fill_has_no_true_cfg_scale_as_in_diffusers(tmp_path: Path) -> None:
    folder = FLUX1.write(tmp_path / "model", FILL)
    with FLUX1.engine(folder, options=ModelOptions()) as engine:
        offer, image = offer_of(engine.info), {"image": "a.png", "mask_image": "b.png"}
    request = JobRequest.parse({"prompt": "a", "true_cfg_scale": 2, **image})
    with pytest.raises(InvalidRequest, match=r"^true_cfg_scale=2\.0: is not a parameter"):
        admit(request, {"default": offer})


@pytest.mark.parametrize(("options", "message"), FLUX1.refused_options())
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    FLUX1.check_refused(folder, options, message)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_the_lora_of_a_job_stand_for(folder: Path, case: str) -> None:
    FLUX1.check_merged_loras(folder, folder.parent, case)


def test_schnell_and_fill_read_a_lora_of_dev(folder: Path, tmp_path: Path) -> None:
    """As in diffusers, schnell leaves out the layers that it lacks, and the further channels of
    Fill's input are not changed: `make parity-fuzz FUZZ="--cases f9018,f9149"` compares images."""
    read = []
    schnell = Variant(transformer={"guidance_embeds": False})
    for name, variant in (("dev", Variant()), ("schnell", schnell), ("fill", FILL)):
        write_configs(tmp_path / name, variant)
        model = read_configs(CheckpointFiles(tmp_path / name))
        networks = model.networks()
        shapes = {each: stored_shapes(networks[each]) for each in model.lora_names.networks}
        options = FLUX1.lora_options(folder.parent, {"diffusers": 1.0})
        read.append(read_loras(options, shapes, model.lora_names)[TRANSFORMER])
    of_dev, of_schnell, of_fill = read
    embedder = "time_text_embed.guidance_embedder.linear_2.weight"
    assert of_dev.keys() - of_schnell.keys() == {embedder}
    assert of_schnell.keys() < of_dev.keys() == of_fill.keys()
    [dev], [fill] = of_dev["x_embedder.weight"], of_fill["x_embedder.weight"]
    channels = dev.down.shape[1]
    np.testing.assert_array_equal(fill.down[:, :channels], dev.down)
    assert not fill.down[:, channels:].any()
    assert fill.down.shape[1] == FILL.transformer["in_channels"]


@pytest.mark.parametrize(
    ("file", "key", "message"),
    [
        ("diffusers", "lora_unet_single_blocks_0_linear2.lora_up.weight", "has names of several"),
        ("diffusers", "transformer.norm_out.linear.lora_down.weight", "second time"),
        ("diffusers", "transformer.transformer_blocks.1.attn.to_q.lora_A.weight", "for 14 of 15"),
        ("diffusers", "text_encoder_2.encoder.block.0.layer.0.q.lora_A.weight", "1 key fits no"),
        ("kohya", "lora_te2_encoder_block_0_layer_0_q.lora_up.weight", "1 key fits no weight"),
        ("kohya", "lora_unet_img_in.lora_down.weight", "1 key fits no weight"),
        ("kohya", "double_blocks.0.img_attn.norm.query_norm.scale", "also replaces norms"),
        ("one_trainer", "lora_transformer_transformer_blocks_0_ff_net_2.alpha", "fits no weight"),
        ("one_trainer", "lora_transformer_proj_out.lora_down.weight", "for 6 of 7"),
        ("peft", "base_model.model.img_in.lora_A.weight", "1 key fits no weight"),
        ("x_flux", "double_blocks.1.processor.qkv_lora1.alpha", "x-flux's format, in which"),
    ],
)
def test_lora_files_that_diffusers_reads_otherwise_are_refused(
    folder: Path, tmp_path: Path, file: str, key: str, message: str
) -> None:
    tensors = load_file(folder.parent / f"{file}.safetensors")
    save_file({**tensors, key: np.ones((3, 32), np.float32)}, tmp_path / f"{file}.safetensors")
    options = FLUX1.lora_options(tmp_path, {file: 1.0})
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(folder, FLUX1.shape, ModelOptions(loras=options))
