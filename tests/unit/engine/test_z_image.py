"""Z-Image computes what diffusers computes, from the same weights."""

from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.families.z_image.configs import Configs
from imagefleet.worker.engine.families.z_image.denoiser import ZImageDenoiser
from imagefleet.worker.engine.families.z_image.transformer import (
    SHORT_TEXTS,
    Block,
    RefinedText,
    Transformer,
    _angles,
)
from imagefleet.worker.engine.families.z_image.transformer_config import TransformerConfig
from imagefleet.worker.engine.networks.rotary import Rotation
from imagefleet.worker.engine.schedulers.registry import step_table
from tests.unit.engine.flow_family import Z_IMAGE
from tests.unit.engine.flow_parity import FlowOracle, drawn_block
from tests.unit.engine.parity import worst
from tools.parity.flow.z_image_case import (
    FULL_TOKENS,
    GUIDANCES,
    HEIGHT,
    MOST_STEPS,
    NEGATIVES,
    PROMPTS,
    STEPS,
    STRENGTH,
    STRENGTHS,
    TIMES,
    VARIANTS,
    WIDTH,
    Variant,
    full_inputs,
    write_configs,
)

ANSWERS: Final = Z_IMAGE.answers
NOISE: Final = ANSWERS["noise"]
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
PAIRS: Final = list(zip(NEGATIVES, PROMPTS, strict=True))
TOLERANCE: Final = 1e-5
"""Relative tolerance of a block. Measured: 2e-6."""
TOLERANCE_OF_ALL: Final = 3e-5
"""That of the transformer, in which the errors of six blocks add up. Measured: 3e-6 to 1e-5."""
TOLERANCE_IN_BFLOAT16: Final = 0.03
"""That of blocks and of the transformer in bfloat16. Measured: 0.005 to 0.010, and 0.021."""
BLOCKS: Final = sorted(key.removesuffix(".in") for key in ANSWERS if key.endswith(".in"))


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> FlowOracle:
    return Z_IMAGE.oracle(tmp_path_factory.mktemp("z_image"))


def _transformer(oracle: FlowOracle) -> Transformer:
    denoiser = cast(ZImageDenoiser, oracle.programs.denoiser)
    return cast(Transformer, nnx.merge(denoiser.transformer, oracle.weights.denoiser))


def _texts(oracle: FlowOracle) -> RefinedText:
    """Return the refined texts of both pairs, `[2, 2, …]`."""
    inputs = oracle.with_states(oracle.empty(2).inputs()._replace(tokens=oracle.tokens(PAIRS)))
    encode = jax.jit(
        lambda denoiser, weights, inputs: denoiser.encode_prompts(weights, inputs, HEIGHT, WIDTH),
        static_argnums=0,
    )
    return cast(RefinedText, encode(oracle.programs.denoiser, oracle.weights, inputs))


@pytest.mark.parametrize("short", [(32,), SHORT_TEXTS["cpu"]])
def test_the_transformer_computes_the_same_velocity_for_texts_of_other_lengths(
    oracle: FlowOracle, short: tuple[int, ...]
) -> None:
    """Steps read 32 tokens of the first text twice, and more of both texts."""
    text = _texts(oracle)
    lengths = np.asarray(text.padded_length)
    assert lengths[0, 1] <= 32 < lengths[1, 1] <= 128  # the padding of the texts differs
    inputs = np.moveaxis(NOISE, 1, -1), jnp.array(TIMES), jax.tree.map(lambda x: x[:, 1], text)
    run = jax.jit(lambda *inputs: _transformer(oracle)(*inputs))
    expected = np.moveaxis(ANSWERS["output"], 1, -1)
    with patch.dict(SHORT_TEXTS, cpu=short):
        assert worst(run(*inputs), expected) < TOLERANCE_OF_ALL
        of_first = run(*jax.tree.map(lambda each: each[np.array([0, 0])], inputs))
        assert worst(of_first, expected[[0, 0]]) < TOLERANCE_OF_ALL


def _tokens_after(network: Transformer, name: str, dtype: DTypeLike) -> jax.Array:
    """Return the output of a block for the input that it had in diffusers."""
    kind, number = name.split(".")
    block: Block = getattr(network, kind)[int(number)]
    length = jnp.array([len(ANSWERS["context_refiner.0.in"])])
    text = RefinedText(jnp.zeros((1, int(length[0]), 1)), length)
    of_text = network._text_rotation(int(length[0]))
    of_image = network._image_rotation(HEIGHT // 8, WIDTH // 8, text)
    rotation = {
        "context_refiner": Rotation(*(each[None] for each in of_text)),
        "noise_refiner": of_image,
        "layers": Rotation(
            *(
                np.concatenate([image, one[None]], axis=1)
                for image, one in zip(of_image, of_text, strict=True)
            )
        ),
    }[kind]
    time = None
    if kind != "context_refiner":
        time = network.t_embedder(jnp.array(TIMES[:1]) * 1000, dtype)
    return block(jnp.asarray(ANSWERS[f"{name}.in"][None], dtype), rotation, None, time)


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_computes_the_same_tokens(oracle: FlowOracle, name: str) -> None:
    tokens = _tokens_after(_transformer(oracle), name, jnp.float32)
    assert worst(tokens, ANSWERS[f"{name}.out"][None]) < TOLERANCE


@pytest.fixture(scope="module")
def in_bfloat16(oracle: FlowOracle) -> FlowOracle:
    """Return the model in bfloat16, which is the default on TPU."""
    return oracle.in_bfloat16()


@pytest.mark.parametrize("name", BLOCKS)
def test_in_bfloat16_no_part_of_a_block_is_widened(in_bfloat16: FlowOracle, name: str) -> None:
    tokens = _tokens_after(_transformer(in_bfloat16), name, jnp.bfloat16)
    assert tokens.dtype == jnp.bfloat16
    assert worst(tokens, ANSWERS[f"{name}.out"][None]) < TOLERANCE_IN_BFLOAT16


def test_in_bfloat16_velocities_are_near_those_of_float32(in_bfloat16: FlowOracle) -> None:
    text = _texts(in_bfloat16)
    assert text.tokens.dtype == jnp.bfloat16
    prompts = jax.tree.map(lambda each: each[:, 1], text)
    latents = jnp.asarray(np.moveaxis(NOISE, 1, -1), jnp.bfloat16)
    run = jax.jit(lambda *inputs: _transformer(in_bfloat16)(*inputs))
    output = run(latents, jnp.array(TIMES), prompts)
    assert output.dtype == jnp.bfloat16
    assert worst(output, np.moveaxis(ANSWERS["output"], 1, -1)) < TOLERANCE_IN_BFLOAT16


class _OneBlock(Block):
    weight_names = Transformer.weight_names


def test_a_block_of_full_width_computes_the_same_tokens(tmp_path: Path) -> None:
    config = TransformerConfig.from_json({})
    block = drawn_block(_OneBlock, config, tmp_path)
    tokens, time = full_inputs()
    places = np.zeros((FULL_TOKENS, 3), np.int64)
    places[:, 0] = 1 + np.arange(FULL_TOKENS)
    rotation = Rotation.of_angles(_angles(config, places))
    assert worst(block(tokens, rotation, None, time), ANSWERS["full_block"]) < TOLERANCE


@pytest.mark.parametrize("guidance", GUIDANCES)
def test_whole_images_are_those_of_diffusers(oracle: FlowOracle, guidance: float) -> None:
    Z_IMAGE.check_whole_images(oracle, guidance)


def test_a_guidance_scale_of_zero_is_no_guidance_beside_a_slot_that_has_one(
    oracle: FlowOracle,
) -> None:
    """The step with guidance then gives both slots what they get alone."""
    Z_IMAGE.check_whole_images(oracle, 0.0, beside_guided=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_images_of_other_configs_are_those_of_diffusers(tmp_path: Path, name: str) -> None:
    Z_IMAGE.check_variant(tmp_path, name)


def test_the_shift_depends_on_the_size_of_the_image_if_the_file_says_so(tmp_path: Path) -> None:
    for number, (scheduler, is_equal) in enumerate(
        (({}, True), ({"use_dynamic_shifting": True}, False))
    ):
        folder = tmp_path / str(number)
        write_configs(folder, Variant(scheduler=scheduler))
        model = read_configs(CheckpointFiles(folder))
        small, large = (
            step_table("euler", model.noise_schedule(Shape(height=32, width=width)), STEPS).rows
            for width in (32, 64)
        )
        assert np.array_equal(small, large) == is_equal


@pytest.mark.parametrize("name", ["img2img", "inpaint"])
def test_a_strength_leaves_out_as_many_steps_as_in_diffusers(oracle: FlowOracle, name: str) -> None:
    strengths = oracle.model.image_use.default_strengths
    skipped = [
        [steps - strengths.steps_left(steps, strength) for steps in range(1, MOST_STEPS + 1)]
        for strength in STRENGTHS
    ]
    np.testing.assert_array_equal(skipped, ANSWERS[f"{name}.skipped"])


@pytest.mark.parametrize("name", ["img2img", "inpaint"])
def test_images_that_start_from_an_image_are_those_of_diffusers(
    oracle: FlowOracle, name: str
) -> None:
    Z_IMAGE.check_image_from_image(oracle, name, STRENGTH, is_masked=name == "inpaint")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"transformer": [None, None]}, "transformer is missing"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderTiny"]}, "runs AutoencoderKL"),
        (
            "model_index.json",
            {"text_encoder": ["transformers", "CLIPTextModel"]},
            "runs Qwen3Model or Qwen3ForCausalLM",
        ),
        (
            "model_index.json",
            {"scheduler": ["diffusers", "DDIMScheduler"]},
            "a flow model needs one of FlowMatchEuler",
        ),
        ("transformer/config.json", {"dim": 36}, r"axes_dims=\[4, 6, 6\] must be three even"),
        ("transformer/config.json", {"in_channels": 8}, "latent_channels must be equal but are 8"),
        (
            "transformer/config.json",
            {"cap_feat_dim": 9},
            "text hidden_size must be equal but are 9",
        ),
        ("transformer/config.json", {"all_patch_size": [2, 4]}, r"all_patch_size=\[2, 4\]"),
        ("transformer/config.json", {"siglip_feat_dim": 8}, "siglip_feat_dim=8"),
        ("vae/config.json", {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}, "not read"),
        ("text_encoder/adapter_config.json", {}, "would add this adapter"),
        ("text_encoder/config.json", {"model_type": "qwen2"}, "model_type='qwen2'"),
    ],
)
def test_a_checkpoint_with_other_parts_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], message: str
) -> None:
    Z_IMAGE.change_config(tmp_path, file, change)
    with pytest.raises(CheckpointError, match=message):
        Configs.read(CheckpointFiles(tmp_path))
