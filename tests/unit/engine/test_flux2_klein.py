"""FLUX.2 klein computes what diffusers computes, from the same weights."""

from pathlib import Path
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.typing import DTypeLike
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux2_klein.blocks import DoubleBlock, SingleBlock
from imagefleet.worker.engine.families.flux2_klein.configs import Configs
from imagefleet.worker.engine.families.flux2_klein.denoiser import Flux2KleinDenoiser
from imagefleet.worker.engine.families.flux2_klein.shift import EmpiricalShift
from imagefleet.worker.engine.families.flux2_klein.transformer import Transformer, rotation_of
from imagefleet.worker.engine.families.flux2_klein.transformer_config import TransformerConfig
from imagefleet.worker.engine.families.flux2_klein.vae import Flux2Vae
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.loading.compile_ahead import AbstractModel
from imagefleet.worker.engine.networks.latent_packing import pack, unpack
from imagefleet.worker.engine.networks.modulation import Modulated
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.schedulers import registry
from tests.unit.engine.flow_family import FLUX2_KLEIN
from tests.unit.engine.flow_parity import FlowOracle, drawn_block, write_drawn_weights
from tests.unit.engine.parity import worst
from tools.parity.flow.flux2_klein_case import (
    BLOCK_TOKENS,
    FULL_APART,
    FULL_SIZE,
    FULL_TOKENS,
    FULL_WIDTH,
    GUIDANCES,
    HEIGHT,
    NEGATIVES,
    PIXELS_PER_TOKEN,
    PROMPTS,
    SHIFTED_STEPS,
    SHIFTED_TOKENS,
    STATES_APART,
    TIMESTEPS,
    VARIANTS,
    WIDTH,
    Variant,
    full_inputs,
    write_configs,
)
from tools.parity.known.write import init_image

ANSWERS: Final = FLUX2_KLEIN.answers
NOISE: Final = ANSWERS["noise"]
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
PAIRS: Final = list(zip(NEGATIVES, PROMPTS, strict=True))
SIZE: Final = (HEIGHT // PIXELS_PER_TOKEN, WIDTH // PIXELS_PER_TOKEN)
TOLERANCE: Final = 1e-5
"""Relative tolerance of a block and of a part."""
TOLERANCE_IN_BFLOAT16: Final = 0.03
"""That of blocks in bfloat16, whose numbers have a relative precision of 0.004."""
BLOCKS: Final = sorted({key.split(".in.")[0] for key in ANSWERS if ".in." in key})
_IN_IMAGE, _IN_TEXT = "in.hidden_states", "in.encoder_hidden_states"
_OUT_IMAGE, _OUT_TEXT = "out.hidden_states", "out.encoder_hidden_states"


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> FlowOracle:
    return FLUX2_KLEIN.oracle(tmp_path_factory.mktemp("flux2_klein"))


def _denoiser(oracle: FlowOracle) -> Flux2KleinDenoiser:
    return cast(Flux2KleinDenoiser, oracle.programs.denoiser)


def _transformer(oracle: FlowOracle) -> Transformer:
    return cast(Transformer, nnx.merge(_denoiser(oracle).transformer, oracle.weights.denoiser))


def _vae(oracle: FlowOracle) -> Flux2Vae:
    return cast(Flux2Vae, nnx.merge(cast(Any, oracle.programs.vae), oracle.weights.vae))


def test_the_transformer_reads_the_same_states_and_computes_the_same_velocity(
    oracle: FlowOracle,
) -> None:
    """The states of the tokens that pad a prompt are read, too."""
    (ids,) = oracle.tokens(PAIRS)

    @jax.jit
    def run(text: Any, latents: Any) -> tuple[jax.Array, jax.Array]:
        states = _denoiser(oracle).text_encoding(oracle.weights, text)
        network = _transformer(oracle)
        return states, network(latents, jnp.array(TIMESTEPS), network.embed_text(states))

    states, output = run(ids[:, 1, 0], np.moveaxis(NOISE, 1, -1))
    assert (ids[:, 1, 0, ::STATES_APART] < 0).any()
    assert worst(states[:, ::STATES_APART], ANSWERS["states"]) < TOLERANCE
    assert worst(output.reshape(2, -1, output.shape[-1]), ANSWERS["output"]) < TOLERANCE


def _tokens_after(network: Transformer, name: str, dtype: DTypeLike) -> dict[str, jax.Array]:
    """Return the output of a block for the input that it had in diffusers."""
    kind, number = name.split(".")
    block: Any = getattr(network, kind)[int(number)]
    time = network.time_embedder(jnp.array(TIMESTEPS[:1]), dtype)
    rotation = rotation_of(network.config, BLOCK_TOKENS, *SIZE)
    image = jnp.asarray(ANSWERS[f"{name}.{_IN_IMAGE}"], dtype)
    if kind == "single_transformer_blocks":
        (modulated,) = network.single_stream_modulation(time)
        return {_OUT_IMAGE: block(image, modulated, rotation)}
    text = jnp.asarray(ANSWERS[f"{name}.{_IN_TEXT}"], dtype)
    of_text = network.double_stream_modulation_txt(time)
    of_image = network.double_stream_modulation_img(time)
    text, image = block(text, image, of_text, of_image, rotation)
    return {_OUT_TEXT: text, _OUT_IMAGE: image}


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_computes_the_same_tokens(oracle: FlowOracle, name: str) -> None:
    for output, tokens in _tokens_after(_transformer(oracle), name, jnp.float32).items():
        assert worst(tokens, ANSWERS[f"{name}.{output}"]) < TOLERANCE


class _OneDouble(DoubleBlock):
    weight_names = WeightNames(to_checkpoint=((r"\bto_out\b", "to_out.0"),))


class _OneSingle(SingleBlock):
    weight_names = WeightNames()


def test_blocks_of_full_width_compute_the_same_tokens(tmp_path: Path) -> None:
    config = TransformerConfig.from_json({"guidance_embeds": False, "num_attention_heads": 24})
    assert config.width == FULL_WIDTH
    text, image, numbers = full_inputs()
    parts = jnp.split(jnp.asarray(numbers)[:, None], 6, axis=-1)
    modulated = Modulated(*parts[:3]), Modulated(*parts[3:])
    rotation = rotation_of(config, FULL_TOKENS, *FULL_SIZE)
    for name in ("double", "single"):
        (tmp_path / name).mkdir()
    double = drawn_block(_OneDouble, config, tmp_path / "double")
    of_double = double(text, image, modulated, modulated, rotation)
    of_double = np.concatenate(of_double, axis=1)[..., ::FULL_APART]
    assert worst(of_double, ANSWERS["full_double"]) < TOLERANCE
    single = drawn_block(_OneSingle, config, tmp_path / "single")
    of_single = single(np.concatenate([text, image], axis=1), modulated[0], rotation)
    assert worst(of_single[..., ::FULL_APART], ANSWERS["full_single"]) < TOLERANCE


def test_in_bfloat16_no_block_is_widened_and_results_are_near_those_of_float32(
    oracle: FlowOracle,
) -> None:
    """bfloat16 is the default on TPU."""
    network = _transformer(oracle.in_bfloat16())
    for name in BLOCKS:
        for output, tokens in _tokens_after(network, name, jnp.bfloat16).items():
            assert tokens.dtype == jnp.bfloat16
            assert worst(tokens, ANSWERS[f"{name}.{output}"]) < TOLERANCE_IN_BFLOAT16


def test_the_autoencoder_makes_the_same_latents_and_pixels(oracle: FlowOracle) -> None:
    vae = _vae(oracle)
    pixels = init_image(WIDTH)[:HEIGHT][None] / np.float32(127.5) - 1
    mean, log_variance = vae.encode(jnp.asarray(pixels))
    assert worst(mean, np.moveaxis(ANSWERS["latents"], 1, -1)) < TOLERANCE
    assert log_variance.shape == mean.shape
    decoded = vae.decode(jnp.asarray(np.moveaxis(ANSWERS["latents"], 1, -1)))
    assert worst(decoded, np.moveaxis(ANSWERS["decoded"], 1, -1)) < TOLERANCE


def test_packed_latents_are_unpacked_to_what_they_were() -> None:
    latents = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    packed = pack(jnp.asarray(latents))
    assert packed.shape == (2, 2, 3, 12)
    np.testing.assert_array_equal(packed[0, 0, 0, :4], latents[0, :2, :2, 0].ravel())
    np.testing.assert_array_equal(unpack(packed), latents)


def test_the_shift_depends_on_the_size_of_the_image_and_the_steps_as_in_diffusers() -> None:
    shifts = [
        [EmpiricalShift(tokens)(steps) for steps in SHIFTED_STEPS] for tokens in SHIFTED_TOKENS
    ]
    np.testing.assert_allclose(shifts, ANSWERS["shifts"], rtol=1e-12)


def test_a_file_with_use_flow_sigmas_of_any_class_has_no_euler_and_no_lcm(tmp_path: Path) -> None:
    """diffusers' pipeline then leaves the noise levels to the scheduler."""
    file = "scheduler/scheduler_config.json"
    FLUX2_KLEIN.change_config(tmp_path, file, {"use_flow_sigmas": True})
    schedule = read_configs(CheckpointFiles(tmp_path)).noise_schedule(SHAPE)
    assert set(registry.available(schedule)) == {"heun", "dpmsolver++", "unipc"}
    with pytest.raises(CheckpointError, match=r"use_flow_sigmas=True \(supported: False\)"):
        registry.default(schedule)


@pytest.mark.parametrize("guidance", GUIDANCES)
def test_whole_images_are_those_of_diffusers(oracle: FlowOracle, guidance: float) -> None:
    FLUX2_KLEIN.check_whole_images(oracle, guidance)


@pytest.mark.parametrize("name", VARIANTS)
def test_images_of_other_configs_are_those_of_diffusers(tmp_path: Path, name: str) -> None:
    FLUX2_KLEIN.check_variant(tmp_path, name)


@pytest.mark.parametrize("streams", [False, True])
def test_a_distilled_model_has_no_second_step_without_guidance(
    tmp_path: Path, streams: bool
) -> None:
    """Nor has it one beside reference images, which a shape of this size may have."""
    names, shape = [], Shape(height=512, width=512)
    for is_distilled in (True, False):
        write_configs(tmp_path, Variant(index={"is_distilled": is_distilled}))
        placement = Placement.of(1)
        model = AbstractModel.of(
            read_configs(CheckpointFiles(tmp_path)),
            placement,
            ExecutableCache([], {}, placement.mesh.devices.flatten().tolist()),
            token_lengths=(512,),
            per_device_batch=1,
            dtype=np.dtype(np.float32),
            max_steps=4,
            options=ModelOptions(streams=streams),
        )
        names.append(model.compiler.lowerings(shape, model.rgb_factors).keys())
    assert {name for name in names[0] if "step" in name} == {"step", "reference_step"}
    assert names[1] - names[0] == {"unguided_step", "unguided_reference_step"}


def test_a_checkpoint_may_have_the_number_of_batches_of_its_training(tmp_path: Path) -> None:
    """torch counts them beside the mean and the variance that are read."""
    write_configs(tmp_path)
    write_drawn_weights(tmp_path)
    file = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "bn.num_batches_tracked": np.array(7, np.int64)}, file)
    FlowOracle.read(tmp_path, SHAPE)
    del tensors["bn.running_var"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"vae: bn\.running_var is missing"):
        FlowOracle.read(tmp_path, SHAPE)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"transformer": [None, None]}, "transformer is missing"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderKL"]}, "runs AutoencoderKLFlux2"),
        (
            "model_index.json",
            {"text_encoder": ["transformers", "Mistral3ForConditionalGeneration"]},
            "runs Qwen3ForCausalLM or Qwen3Model",
        ),
        ("model_index.json", {"is_distilled": "yes"}, "is_distilled='yes' must be true or false"),
        ("transformer/config.json", {"guidance_embeds": True}, "guidance_embeds=True"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size=2"),
        ("transformer/config.json", {"out_channels": 8}, "out_channels=8"),
        (
            "transformer/config.json",
            {"axes_dims_rope": [8, 4, 4]},
            r"axes_dims_rope=\[8, 4, 4\] must be four even",
        ),
        ("transformer/config.json", {"in_channels": 8}, "latent_channels must be equal but are 8"),
        (
            "transformer/config.json",
            {"joint_attention_dim": 9},
            "3 times the text hidden_size must be equal but are 9",
        ),
        ("vae/config.json", {"patch_size": [1, 1]}, r"patch_size=\[1, 1\]"),
        (
            "vae/config.json",
            {"decoder_block_out_channels": [8, 8]},
            r"decoder_block_out_channels=\[8, 8\] must have as many numbers",
        ),
        ("text_encoder/adapter_config.json", {}, "would add this adapter"),
        (
            "text_encoder/config.json",
            {"num_hidden_layers": 26},
            "num_hidden_layers=26 is too small",
        ),
    ],
)
def test_a_checkpoint_with_other_parts_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], message: str
) -> None:
    FLUX2_KLEIN.change_config(tmp_path, file, change)
    with pytest.raises(CheckpointError, match=message):
        Configs.read(CheckpointFiles(tmp_path))
