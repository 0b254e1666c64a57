"""ControlNets compute what diffusers' do, and jobs with other nets share a batch.

`tools/parity/control_nets.py` wrote the nets and what PyTorch makes of them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.control_image import ControlImage
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.families.flux1.model import Flux1
from imagefleet.worker.engine.families.stable_diffusion.control_net_config import ControlNetConfig
from imagefleet.worker.engine.families.stable_diffusion.model import StableDiffusion
from imagefleet.worker.engine.options.control_net_options import ControlNetOption
from imagefleet.worker.engine.runtime.batch_inputs import BatchInputBuilder, controlled_calls
from imagefleet.worker.engine.sampling.arrays import ControlImages, Weights
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.sampling.step_tables import StepTables
from imagefleet.worker.engine.schedulers import registry
from tests.unit.engine.parity import (
    BEGIN,
    DECODE,
    FOLDER,
    PROMPTS,
    STEP,
    load_in_float32,
    read_model,
    worst,
)
from tools.parity.control_cases import CASES, FURTHER_CASES, NETS, ControlCase

ANSWERS: Final = load_file(FOLDER / "controlnets" / "expected.safetensors")
SHAPE: Final = Shape(height=32, width=32)
STEPS: Final = 6
EMBED: Final = jax.jit(DiffusionPrograms.embed_control, static_argnums=0)


class Held:
    """A checkpoint with the nets that are for it."""

    def __init__(self, checkpoint: str) -> None:
        self.files = CheckpointFiles(FOLDER / checkpoint)
        self.model = read_model(self.files).with_control_nets(options_for(checkpoint))
        self.programs, self.weights = load_in_float32(self.files, self.model)
        self.known = load_file(FOLDER / checkpoint / "expected.safetensors")

    def builder(self, slots: int) -> BatchInputBuilder:
        noise, tokenizer = self.model.noise_schedule(SHAPE), self.model.load_tokenizer(self.files)
        info = ModelInfo(
            name="a",
            digest="sha256:0",
            shapes=(SHAPE,),
            schedulers=registry.available(noise),
            default_scheduler=registry.default(noise, None),
            default_num_inference_steps=STEPS,
            default_guidance_scale=3.0,
            max_num_inference_steps=STEPS,
            controlnets=self.model.controlnets,
        )
        empty = EmptyBatch.of(self.programs, slots, tokenizer.lengths, STEPS)
        tables = StepTables(info, self.model.noise_schedule)
        return BatchInputBuilder(empty, info, tokenizer, tables)


def options_for(checkpoint: str) -> tuple[ControlNetOption, ...]:
    return tuple(
        ControlNetOption(name=name, path=str(FOLDER / "controlnets" / name))
        for name, (of, _) in NETS.items()
        if of == checkpoint
    )


@cache
def held(checkpoint: str) -> Held:
    return Held(checkpoint)


def spec_of(case: ControlCase, scheduler: str) -> ImageSpec:
    image = ControlImage(pixels=ANSWERS["images"][case.which], digest=f"{case.which}")
    init_image = None
    if case.strength is not None:
        pixels = ANSWERS["images"][1 - case.which]
        init_image = InitImage(pixels=pixels, strength=case.strength, digest="")
    return ImageSpec(
        init_image=init_image,
        prompt=PROMPTS[case.which],
        negative_prompt="blue",
        num_inference_steps=STEPS,
        guidance_scale=case.guidance,
        scheduler="heun" if case.is_heun else scheduler,
        controlnet=case.net,
        control_image=None if case.net is None else image,
        controlnet_conditioning_scale=case.scale,
        control_guidance_start=case.start,
        control_guidance_end=case.end,
    )


def generate(of: Held, cases: Sequence[ControlCase | None]) -> NDArray[np.int_]:
    """Generate the images of a batch with the noise of torch. None is a slot of padding."""
    builder = of.builder(len(cases))
    specs = [
        spec_of(case or ControlCase(which=0, net=None), builder.info.default_scheduler)
        for case in cases
    ]
    inputs = builder.inputs(specs, SHAPE)
    inputs.calls[[slot for slot, case in enumerate(cases) if case is None]] = 0
    init_latents = builder.empty.init_latents(SHAPE)
    if (images := builder.control_images(specs, SHAPE)) is not None:
        control_map = EMBED(of.programs, of.weights, images)
        init_latents = init_latents._replace(control_map=np.asarray(control_map))
    conditions, state = BEGIN(of.programs, of.weights, inputs, init_latents)
    tables = [builder.tables.of(spec, SHAPE) for spec in specs]
    noise = np.stack([_nhwc(of.known["unet.latents"])[case.which if case else 0] for case in cases])
    # In image to image, diffusers takes the latents that are given as they are.
    factors = [
        table.input_scale if spec.init_image else table.init_noise_sigma
        for spec, table in zip(specs, tables, strict=True)
    ]
    noise *= np.array(factors, np.float32)[:, None, None, None]
    state = state._replace(latents=jax.device_put(noise, state.latents.sharding))
    for _ in range(max(len(table.rows) for table in tables)):
        state, _ = STEP(of.programs, of.weights.denoiser, conditions, state)
    return np.asarray(DECODE(of.programs, of.weights, state).images, int)


@pytest.mark.parametrize("name", list(NETS))
def test_a_net_computes_the_same_maps_as_that_of_diffusers(name: str) -> None:
    of = held(NETS[name][0])
    number = [net.name for net in of.model.nets].index(name)
    control, known = of.programs.control, of.known
    assert control is not None

    def run(weights: Weights, pixels: NDArray[np.uint8], latents: jax.Array) -> Any:
        net: Any = control._nets(weights.denoiser)[number]  # type: ignore[attr-defined]
        text_time: tuple[Any, ...] = ()
        if "text.pooled" in known:
            text_time = (known["text.pooled"][:2], known["unet.time_ids"][0])
        prompts = [net.project_context(known["text"][:2], *text_time)] * control.count
        images = ControlImages(pixels, np.full(2, number, np.int32))
        scales = np.zeros((2, control.count), np.float32)
        scales[:, number] = 0.5
        control_map = control.embed(weights.denoiser, images)
        return control.run(  # type: ignore[attr-defined]
            weights.denoiser, scales, latents, known["unet.times"], prompts, control_map
        )

    ours = jax.jit(run)(of.weights, ANSWERS["images"], _nhwc(known["unet.latents"]))
    errors = {
        key: worst(mine, _nhwc(ANSWERS[f"{name}|{key}"]))
        for key, mine in [
            *((f"skip.{index}", skip) for index, skip in enumerate(ours.skips)),
            ("middle", ours.middle),
        ]
    }
    assert f"{name}|skip.{len(ours.skips)}" not in ANSWERS
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("before", ["", "further "])
@pytest.mark.parametrize("checkpoint", list(CASES))
def test_jobs_of_unlike_nets_share_a_batch_and_are_the_images_of_diffusers(
    checkpoint: str, before: str
) -> None:
    cases = (FURTHER_CASES if before else CASES)[checkpoint]
    together = generate(held(checkpoint), cases)
    for number, image in enumerate(together):
        expected = ANSWERS[f"{before}{checkpoint}|{number}"].astype(int)
        assert np.abs(image - expected).max() <= 1, cases[number]
    assert len({image.tobytes() for image in together}) == len(cases)


def test_a_job_is_bit_equal_to_itself_alone() -> None:
    cases = CASES["older"]
    together = generate(held("older"), cases)
    for number, case in enumerate(cases):
        alone: list[ControlCase | None] = [None] * len(cases)
        alone[number] = case
        np.testing.assert_array_equal(generate(held("older"), alone)[number], together[number])


def test_a_job_without_a_net_is_the_image_of_a_worker_without_nets() -> None:
    plain = Held.__new__(Held)
    plain.files, plain.known = held("older").files, held("older").known
    plain.model = read_model(plain.files)
    plain.programs, plain.weights = load_in_float32(plain.files, plain.model)
    cases = [ControlCase(which=0, net=None)] * 8
    np.testing.assert_array_equal(generate(held("older"), cases), generate(plain, cases))


@pytest.mark.parametrize(
    ("start", "end", "calls", "expected"),
    [
        (0.0, 1.0, 6, (0, 6)),
        (0.2, 0.8, 6, (2, 4)),
        (0.5, 1.0, 6, (3, 6)),
        (0.0, 0.1, 6, (0, 0)),
        (0.95, 1.0, 6, (0, 0)),
        (1 / 3, 2 / 3, 3, (1, 2)),
    ],
)
def test_a_net_runs_in_the_calls_that_lie_between_start_and_end(
    start: float, end: float, calls: int, expected: tuple[int, int]
) -> None:
    case = ControlCase(which=0, net="edges", start=start, end=end)
    assert controlled_calls(spec_of(case, "ddim"), calls) == expected


def test_a_batch_refuses_an_unknown_net_and_an_image_of_another_size() -> None:
    builder = held("older").builder(1)
    spec = spec_of(CASES["older"][0], builder.info.default_scheduler)
    with pytest.raises(ValueError, match="'tiles' is not available; there are edges, depth"):
        builder.inputs([replace(spec, controlnet="tiles")], SHAPE)
    with pytest.raises(ValueError, match="ControlNet 'edges' needs a control image"):
        builder.inputs([replace(spec, control_image=None)], SHAPE)
    small = ControlImage(pixels=np.zeros((16, 32, 3), np.uint8), digest="")
    with pytest.raises(ValueError, match="the control image is 16x32 pixels, but the batch is for"):
        builder.control_images([replace(spec, control_image=small)], SHAPE)


def test_a_net_for_another_model_and_other_kinds_of_nets_are_refused(tmp_path: Path) -> None:
    model = held("older").model
    with pytest.raises(CheckpointError, match="controlnet shapes: it is for another model"):
        model.with_control_nets(options_for("xl"))
    for changes, sentence in (
        ({"_class_name": "ControlNetUnionModel"}, "ControlNetUnionModel is not supported"),
        ({"global_pool_conditions": True}, r"global_pool_conditions=True \(supported: False\)"),
        ({"controlnet_conditioning_channel_order": "bgr"}, "channel_order='bgr'"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            ControlNetConfig.from_json(changes, file="config.json")


def test_weights_of_a_net_are_loaded_strictly(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER / "controlnets" / "edges", tmp_path / "edges"))
    file = folder / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    tensors["controlnet_down_blocks.9.bias"] = tensors.pop("controlnet_mid_block.bias")
    save_file(tensors, file)
    of = held("older")
    model = read_model(of.files).with_control_nets(
        [ControlNetOption(name="edges", path=str(folder))]
    )
    with pytest.raises(CheckpointError) as caught:
        load_in_float32(of.files, model)
    assert "controlnet edges: controlnet_mid_block.bias is missing" in str(caught.value)
    assert "controlnet_down_blocks.9.bias is not a weight of this network" in str(caught.value)


def test_models_that_take_no_nets_refuse_them_in_a_sentence() -> None:
    option = ControlNetOption(name="edges", path="/nets/edges")
    with pytest.raises(ConfigurationError, match=r"FLUX\.1 takes no ControlNet here"):
        Flux1.with_control_nets(object.__new__(Flux1), [option])
    configs = held("older").model.configs
    inpainting = replace(
        configs,
        pipeline=replace(
            configs.pipeline, image_use=replace(configs.pipeline.image_use, required=("image",))
        ),
    )
    with pytest.raises(ConfigurationError, match="edit, inpaint or refine an image take no Contr"):
        StableDiffusion(inpainting).with_control_nets([option])


def _nhwc(array: Any) -> Any:
    return np.moveaxis(array, -3, -1)
