"""FLUX.1 computes what diffusers computes, from the same weights."""

from pathlib import Path
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux1.denoiser import Flux1Denoiser
from imagefleet.worker.engine.families.flux1.transformer import Transformer, rotation_of
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.networks.clip_text import ClipText
from imagefleet.worker.engine.schedulers.registry import available
from tests.unit.engine.flow_family import FLUX1
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import worst
from tools.parity.flow.flux1_case import (
    BLOCK_TOKENS,
    FILL,
    FILL_STRENGTHS,
    GUIDANCES,
    HEIGHT,
    NEGATIVES,
    PROMPTS,
    SCHNELL,
    STATES_APART,
    STRENGTH,
    TIMESTEPS,
    TRUE_GUIDANCES,
    VARIANTS,
    WIDTH,
    Variant,
    write_configs,
)

ANSWERS: Final = FLUX1.answers
NOISE: Final = ANSWERS["noise"]
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
PAIRS: Final = list(zip(NEGATIVES, PROMPTS, strict=True))
TOLERANCE: Final = 1e-5
"""Relative tolerance of a block and of a part."""
TOLERANCE_OF_STATES: Final = 1e-4
"""That of the states of 512 tokens. Most of them are padding and have equal values: in a float32
sum of these, rounding errors add up. From states in float64 ours are 5e-5 away, and those of
transformers 1.5e-5. test_t5_text.py compares shorter prompts by 1e-5."""
TOLERANCE_IN_BFLOAT16: Final = 0.03
"""That of blocks in bfloat16, whose numbers have a relative precision of 0.004."""
BLOCKS: Final = sorted({key.split(".in.")[0] for key in ANSWERS if ".in." in key})


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> FlowOracle:
    return FLUX1.oracle(tmp_path_factory.mktemp("flux1"))


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> FlowOracle:
    return FLUX1.oracle(tmp_path_factory.mktemp("fill"), FILL)


def _denoiser(oracle: FlowOracle) -> Flux1Denoiser:
    return cast(Flux1Denoiser, oracle.programs.denoiser)


def _transformer(oracle: FlowOracle) -> Transformer:
    return cast(Transformer, nnx.merge(_denoiser(oracle).transformer, oracle.weights.denoiser))


def test_the_transformer_reads_the_same_states_and_computes_the_same_velocity(
    oracle: FlowOracle,
) -> None:
    """It reads those of T5, also of the tokens that pad a prompt, and the pooled one of CLIP."""
    of_t5, of_clip = oracle.tokens(PAIRS)

    @jax.jit
    def run(of_t5: Any, of_clip: Any, latents: Any) -> tuple[jax.Array, ...]:
        states = _denoiser(oracle).text_encoding(oracle.weights, of_t5)
        clip = cast(ClipText, nnx.merge(_denoiser(oracle).clip, oracle.weights.text[1]))
        pooled, network = clip.end_state(of_clip), _transformer(oracle)
        guidance = jnp.full(2, GUIDANCES[-1])
        text = network.embed_text(states, pooled)
        return states, pooled, network(latents, jnp.array(TIMESTEPS), guidance, text)

    states, pooled, output = run(of_t5[:, 1, 0], of_clip[:, 1, 0], np.moveaxis(NOISE, 1, -1))
    assert worst(states[:, ::STATES_APART], ANSWERS["states"]) < TOLERANCE_OF_STATES
    assert worst(pooled, ANSWERS["pooled"]) < TOLERANCE
    assert worst(_packed(output), ANSWERS["output"]) < TOLERANCE_OF_STATES


def _packed(latents: Any) -> Any:
    """Pack latents `[b, h, w, c]` as `_pack_latents` of diffusers does."""
    batch, height, width, channels = latents.shape
    squares = latents.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return squares.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, 4 * channels)


def _tokens_after(oracle: FlowOracle, name: str, dtype: DTypeLike) -> dict[str, jax.Array]:
    """Return the output of a block for the input that it had in diffusers."""
    network = _transformer(oracle)
    kind, number = name.split(".")
    block: Any = getattr(network, kind)[int(number)]
    pooled = network.time_text_embed.text_embedder(jnp.asarray(ANSWERS["pooled"][:1], dtype))
    time = network.time_text_embed(jnp.array(TIMESTEPS[:1]), pooled, jnp.array(GUIDANCES[-1:]))
    rotation = rotation_of(network.config, BLOCK_TOKENS, HEIGHT // 8, WIDTH // 8)
    text, image = (
        jnp.asarray(ANSWERS[f"{name}.in.{key}"], dtype)
        for key in ("encoder_hidden_states", "hidden_states")
    )
    if kind == "transformer_blocks":
        text, image = block(text, image, time, rotation)
    else:
        joined = block(jnp.concatenate([text, image], axis=1), time, rotation)
        text, image = joined[:, :BLOCK_TOKENS], joined[:, BLOCK_TOKENS:]
    return {"encoder_hidden_states": text, "hidden_states": image}


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_computes_the_same_tokens(oracle: FlowOracle, name: str) -> None:
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
    FLUX1.check_whole_images(oracle, guidance)


@pytest.mark.parametrize(("name", "given"), TRUE_GUIDANCES.items())
def test_images_with_true_cfg_scale_are_those_of_diffusers(
    oracle: FlowOracle, name: str, given: tuple[float, str]
) -> None:
    FLUX1.check_first_image(oracle, name, given)


@pytest.mark.parametrize("name", VARIANTS)
def test_images_of_other_configs_are_those_of_diffusers(tmp_path: Path, name: str) -> None:
    FLUX1.check_variant(tmp_path, name)


@pytest.mark.parametrize("name", ["img2img", "inpaint", "inpaint by default"])
def test_images_that_start_from_an_image_are_those_of_diffusers(
    oracle: FlowOracle, name: str
) -> None:
    strengths = oracle.model.image_use.default_strengths
    assert (strengths.image, strengths.mask) == (STRENGTH, STRENGTH)
    is_masked, guided = name.startswith("inpaint"), TRUE_GUIDANCES["guided"]
    FLUX1.check_image_from_image(oracle, name, STRENGTH, is_masked=is_masked)
    FLUX1.check_image_from_image(
        oracle, f"{name}, guided", STRENGTH, is_masked=is_masked, true_guidance=guided
    )


@pytest.mark.parametrize(("name", "strength"), FILL_STRENGTHS.items())
def test_images_that_are_filled_are_those_of_diffusers(
    filling: FlowOracle, name: str, strength: float
) -> None:
    """The transformer of FLUX.1 Fill gets the mask and the masked image beside the noise."""
    use = filling.model.image_use
    assert (use.required, use.default_strengths.mask) == (("image", "mask_image"), 1.0)
    assert (filling.model.default_steps, filling.model.default_guidance) == (50, 30.0)
    FLUX1.check_image_from_image(filling, name, strength, is_masked=True)


def test_defaults_are_those_of_the_pipeline_or_of_the_page_of_schnell(tmp_path: Path) -> None:
    found = []
    for name, given in (
        ("dev", Variant()),
        ("schnell", Variant(transformer={"guidance_embeds": False}, scheduler=SCHNELL)),
    ):
        write_configs(tmp_path / name, given)
        files = CheckpointFiles(tmp_path / name)
        model = read_configs(files)
        lengths = model.load_tokenizer(files).lengths
        found.append((model.default_steps, model.default_guidance, lengths))
    assert found == [(28, 3.5, (512, 77)), (4, 1.0, (256, 77))]


@pytest.mark.parametrize(
    "scheduler",
    ["UniPCMultistepScheduler", "DPMSolverMultistepScheduler", "FlowMatchEulerDiscreteScheduler"],
)
def test_schedulers_that_diffusers_runs_with_other_noise_levels_are_not_offered(
    tmp_path: Path, scheduler: str
) -> None:
    """The pipeline gives no noise levels to the schedulers of files with `use_flow_sigmas`."""
    write_configs(tmp_path, Variant())
    FLUX1.change_config(tmp_path, "model_index.json", {"scheduler": ["diffusers", scheduler]})
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(
        '{"use_flow_sigmas": true, "prediction_type": "flow_prediction", "flow_shift": 3.0}'
    )
    schedule = read_configs(CheckpointFiles(tmp_path)).noise_schedule(SHAPE)
    assert not {"euler", "lcm"} & set(available(schedule))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"_class_name": "FluxControlPipeline"}, "this engine runs .*FluxPip"),
        ("model_index.json", {"_class_name": "FluxFillPipeline"}, "in_channels.* equal but are 64"),
        ("model_index.json", {"text_encoder_2": [None, None]}, "text_encoder_2 is missing"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderTiny"]}, "runs AutoencoderKL"),
        (
            "model_index.json",
            {"tokenizer_2": ["transformers", "LlamaTokenizer"]},
            "runs T5TokenizerFast or T5Tokenizer",
        ),
        ("transformer/config.json", {"out_channels": 16}, "out_channels.* equal but are 16"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size=2"),
        (
            "transformer/config.json",
            {"axes_dims_rope": [8, 8]},
            r"axes_dims_rope=\[8, 8\] must be three even",
        ),
        ("transformer/config.json", {"in_channels": 16}, "pipeline gives it must be equal but are"),
        ("transformer/config.json", {"joint_attention_dim": 9}, "d_model must be equal but are 9"),
        (
            "transformer/config.json",
            {"pooled_projection_dim": 9},
            "hidden_size must be equal but are 9",
        ),
        ("vae/config.json", {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}, "not read"),
        ("text_encoder_2/adapter_config.json", {}, "would add this adapter"),
    ],
)
def test_a_checkpoint_with_other_parts_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], message: str
) -> None:
    FLUX1.change_config(tmp_path, file, change)
    with pytest.raises(CheckpointError, match=message):
        read_configs(CheckpointFiles(tmp_path))
