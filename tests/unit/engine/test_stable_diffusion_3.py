"""Stable Diffusion 3 computes what diffusers computes, from the same weights."""

import shutil
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.families.stable_diffusion_3.denoiser import StableDiffusion3Denoiser
from imagefleet.worker.engine.families.stable_diffusion_3.transformer import Transformer
from imagefleet.worker.engine.loading.host_plan import plan_host
from imagefleet.worker.engine.loading.read_model import choose_shapes, read_supported
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.tpu_hosts import TpuHost
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.schedulers.registry import step_table
from tests.unit.engine.flow_family import STABLE_DIFFUSION_3
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import worst
from tools.parity.flow.stable_diffusion_3_case import (
    GUIDANCES,
    HEIGHT,
    NEGATIVES,
    PROMPTS,
    STATES_APART,
    STEPS,
    STRENGTH,
    T5_LEFT_OUT,
    TIMESTEPS,
    VARIANTS,
    WIDTH,
    Variant,
    write_configs,
)
from tools.parity.known.write import init_image, inpaint_mask
from tools.tpu.models import write_flow_configs

ANSWERS: Final = STABLE_DIFFUSION_3.answers
NOISE: Final = ANSWERS["noise"]
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
PAIRS: Final = list(zip(NEGATIVES, PROMPTS, strict=True))
TOLERANCE: Final = 1e-5
"""Relative tolerance of a block and of a part."""
TOLERANCE_OF_STATES: Final = 1e-4
"""That of the states of 256 tokens: see test_flux1.py."""
TOLERANCE_IN_BFLOAT16: Final = 0.03
"""That of blocks in bfloat16, whose numbers have a relative precision of 0.004."""
BLOCKS: Final = sorted({key.split(".in.")[0] for key in ANSWERS if ".in." in key})


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> FlowOracle:
    return STABLE_DIFFUSION_3.oracle(tmp_path_factory.mktemp("stable_diffusion_3"))


def _transformer(oracle: FlowOracle) -> Transformer:
    denoiser = cast(StableDiffusion3Denoiser, oracle.programs.denoiser)
    return cast(Transformer, nnx.merge(denoiser.transformer, oracle.weights.denoiser))


def test_the_transformer_reads_the_same_texts_and_computes_the_same_velocity(
    oracle: FlowOracle,
) -> None:
    """It reads the states of both CLIP side by side, then those of T5, also of the tokens that pad
    a prompt, and the pooled states of both CLIP."""
    inputs = oracle.empty(len(PAIRS)).inputs()._replace(tokens=oracle.tokens(PAIRS))
    inputs = oracle.with_states(inputs)
    given: dict[str, jax.Array] = {}

    def keep(network: Transformer, states: jax.Array, pooled: jax.Array) -> Any:
        given.update(states=states[1::2], pooled=pooled[1::2])
        return embed(network, states, pooled)

    embed = Transformer.embed_text
    with patch.object(Transformer, "embed_text", keep):
        text = oracle.programs.denoiser.encode_prompts(oracle.weights, inputs, HEIGHT, WIDTH)
    assert worst(given["states"][:, ::STATES_APART], ANSWERS["states"]) < TOLERANCE_OF_STATES
    assert worst(given["pooled"], ANSWERS["pooled"]) < TOLERANCE
    prompts = jax.tree.map(lambda each: each[:, 1], text)
    output = _transformer(oracle)(jnp.moveaxis(NOISE, 1, -1), jnp.array(TIMESTEPS), prompts)
    assert worst(np.moveaxis(np.asarray(output), -1, 1), ANSWERS["output"]) < TOLERANCE_OF_STATES


def _tokens_after(oracle: FlowOracle, name: str, dtype: DTypeLike) -> dict[str, jax.Array]:
    """Return the output of a block for the input that it had in diffusers."""
    network = _transformer(oracle)
    pooled = network.time_text_embed.text_embedder(jnp.asarray(ANSWERS["pooled"][:1], dtype))
    time = network.time_text_embed(jnp.array(TIMESTEPS[:1]), pooled)
    text, image = (
        jnp.asarray(ANSWERS[f"{name}.in.{key}"], dtype)
        for key in ("encoder_hidden_states", "hidden_states")
    )
    text, image = network.transformer_blocks[int(name)](text, image, time)
    is_last = int(name) == len(network.transformer_blocks) - 1
    return {"hidden_states": image} | ({} if is_last else {"encoder_hidden_states": text})


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_computes_the_same_tokens(oracle: FlowOracle, name: str) -> None:
    """Two have dual attention, the last one makes no text."""
    for key, tokens in _tokens_after(oracle, name, jnp.float32).items():
        assert worst(tokens, ANSWERS[f"{name}.out.{key}"]) < TOLERANCE


def test_in_bfloat16_no_part_of_a_block_is_widened(oracle: FlowOracle) -> None:
    """bfloat16 is the default on TPU."""
    half = oracle.in_bfloat16()
    for name in BLOCKS:
        for key, tokens in _tokens_after(half, name, jnp.bfloat16).items():
            assert tokens.dtype == jnp.bfloat16
            assert worst(tokens, ANSWERS[f"{name}.out.{key}"]) < TOLERANCE_IN_BFLOAT16


@pytest.mark.parametrize("guidance", GUIDANCES)
def test_whole_images_are_those_of_diffusers(oracle: FlowOracle, guidance: float) -> None:
    STABLE_DIFFUSION_3.check_whole_images(oracle, guidance)


@pytest.mark.parametrize("name", VARIANTS)
def test_images_of_other_configs_are_those_of_diffusers(tmp_path: Path, name: str) -> None:
    STABLE_DIFFUSION_3.check_variant(tmp_path, name)


@pytest.mark.parametrize("name", ["img2img", "inpaint", "inpaint at strength 1"])
def test_images_that_start_from_an_image_are_those_of_diffusers(
    oracle: FlowOracle, name: str
) -> None:
    strengths = oracle.model.image_use.default_strengths
    assert (strengths.image, strengths.mask) == (STRENGTH, STRENGTH)
    left = STEPS if name.endswith("1") else strengths.steps_left(STEPS, STRENGTH)
    table = step_table("euler", oracle.model.noise_schedule(SHAPE), STEPS, STEPS - left)
    images = oracle.empty(1).init_images(SHAPE)
    images = images._replace(pixels=init_image(WIDTH)[:HEIGHT][None])
    if name.startswith("inpaint"):
        mask = inpaint_mask(WIDTH)[:HEIGHT]
        images = images._replace(inpaint_mask=mask[None, :, :, None] > 0)
    noise = np.moveaxis(NOISE[:1], 1, -1)
    with patch.object(diffusion_programs, "normal", lambda *_: jnp.asarray(noise)):
        init_latents = oracle.programs.encode(oracle.weights, images)
    made = oracle.images(PAIRS[:1], table, NOISE[:1], GUIDANCES[-1], init_latents)
    STABLE_DIFFUSION_3.check_near(made, name)


def test_t5_that_is_left_out_need_not_be_there(tmp_path: Path) -> None:
    """diffusers takes `text_encoder_3=None` for the same."""
    folder = STABLE_DIFFUSION_3.write(tmp_path / "model")
    options = ModelOptions(text_encoder_3=False)
    for part in ("text_encoder_3", "tokenizer_3"):
        shutil.rmtree(folder / part)
    oracle = FlowOracle.read(folder, SHAPE, options)
    STABLE_DIFFUSION_3.check_first_image(oracle, T5_LEFT_OUT)


@pytest.mark.parametrize("model", ["flux1_dev", "z_image"])
def test_models_of_other_families_have_no_third_text_encoder_to_leave_out(
    tmp_path: Path, model: str
) -> None:
    write_flow_configs(tmp_path, model)
    with pytest.raises(ConfigurationError, match=r"^IMAGEFLEET_TEXT_ENCODER_3=false: models of"):
        read_supported(CheckpointFiles(tmp_path), ModelOptions(text_encoder_3=False))


def test_a_plan_counts_no_t5_that_is_left_out(tmp_path: Path) -> None:
    write_flow_configs(tmp_path, "sd3.5_medium")
    weights = [
        plan_host(
            tmp_path,
            TpuHost.named("v5e-8"),
            options=ModelOptions(text_encoder_3=has_t5),
            max_per_device_batch=1,
        )
        .batches[0]
        .need.weights
        for has_t5 in (True, False)
    ]
    assert weights[0] - weights[1] == pytest.approx(9.52e9, rel=0.005)


def test_defaults_are_those_of_the_pipeline(tmp_path: Path) -> None:
    found = []
    for name, variant in (("whole", Variant()), ("no T5", Variant(t5=None))):
        write_configs(tmp_path / name, variant)
        files = CheckpointFiles(tmp_path / name)
        model = read_configs(files)
        found.append((model.text_networks, model.load_tokenizer(files).lengths))
    assert found == [(("text_encoder_3",), (256, 77, 77)), ((), (77, 77))]
    assert (model.default_steps, model.default_guidance, model.max_clip_skip) == (28, 7.0, 1)
    assert model.native_shape == Shape(height=64, width=64)
    choose_shapes([Shape(height=72, width=8)], model)
    with pytest.raises(ConfigurationError, match="80x8: height and width must be at most 72"):
        choose_shapes([Shape(height=80, width=8)], model)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "model_index.json",
            {"_class_name": "StableDiffusion3ControlNetPipeline"},
            "this engine runs .*StableDiffusion3Pipeline",
        ),
        ("model_index.json", {"text_encoder": [None, None]}, "text_encoder is missing"),
        (
            "model_index.json",
            {"text_encoder_2": ["transformers", "CLIPTextModel"]},
            "runs CLIPTextModelWithProjection",
        ),
        ("model_index.json", {"tokenizer_3": [None, None]}, "tokenizer_3 is missing"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderTiny"]}, "runs AutoencoderKL"),
        ("transformer/config.json", {"in_channels": 33}, "out_channels=16 .supported: 33"),
        ("transformer/config.json", {"patch_size": 1}, "patch_size=1"),
        ("transformer/config.json", {"qk_norm": "layer_norm"}, "qk_norm='layer_norm'"),
        ("transformer/config.json", {"pos_embed_max_size": None}, "pos_embed_max_size is missing"),
        ("transformer/config.json", {"dual_attention_layers": 3}, "is not a list of whole numbers"),
        ("transformer/config.json", {"caption_projection_dim": 9}, "caption_projection_dim=9"),
        ("transformer/config.json", {"joint_attention_dim": 20}, "would cut off"),
        ("transformer/config.json", {"joint_attention_dim": 40}, "d_model must be equal but are"),
        (
            "transformer/config.json",
            {"pooled_projection_dim": 9},
            "projection_dim of both text encoders must be equal but are 9 and 20",
        ),
        ("vae/config.json", {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}, "not read"),
        ("text_encoder_3/adapter_config.json", {}, "would add this adapter"),
    ],
)
def test_a_checkpoint_with_other_parts_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], message: str
) -> None:
    STABLE_DIFFUSION_3.change_config(tmp_path, file, change)
    with pytest.raises(CheckpointError, match=message):
        read_configs(CheckpointFiles(tmp_path))
