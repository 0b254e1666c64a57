"""Prompts with weights, and beyond the text encoders' length, equal lpw_stable_diffusion."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.shared.jobs.prompt_weights import Piece, pieces_of
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.families.stable_diffusion.prompt_chunks import used_tokens, weigh
from imagefleet.worker.engine.families.stable_diffusion.prompt_encoder import EncodedPrompt
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptChunks
from tests.unit.engine.parity import FOLDER, SPEC, Oracle, by_encoder, load_older, token_ids, worst
from tools.parity.weighted_prompts import CASES, LONG, MAX_CHUNKS

TOLERANCE: Final = 1e-5
USED: Final = (np.array([1, 2]), np.array([1, 1]))
NATIVE: Final = Shape(height=32, width=32)
WEIGHTED: Final = replace(SPEC, prompt_weighting=True)


def _chunks(oracle: Oracle, *prompts: str) -> PromptChunks:
    tokenizer = oracle.load_tokenizer()
    pieces = [pieces_of(prompt, weighting=True) for prompt in prompts]
    return tokenizer.chunks(pieces, MAX_CHUNKS, most=MAX_CHUNKS)


def _stacked(slots: list[tuple[NDArray[Any], ...]]) -> list[NDArray[Any]]:
    """Return the arrays of each encoder of all slots, `[b, 2, k, n]`."""
    return [np.stack(each) for each in zip(*slots, strict=True)]


def _encode(oracle: Oracle, chunks: list[PromptChunks]) -> EncodedPrompt:
    slots = len(chunks)
    encoded: EncodedPrompt = jax.jit(oracle.denoiser.prompt_encoder)(
        oracle.weights.text,
        _stacked([each.ids for each in chunks]),
        np.ones(slots, bool),
        np.zeros(slots, np.int32),
        token_weights=_stacked([each.weights for each in chunks]),
        used_chunks=np.array([each.used for each in chunks], np.int32),
    )
    return encoded


def test_states_equal_those_of_lpw_stable_diffusion() -> None:
    """Slots with other numbers of chunks are encoded together."""
    oracle = Oracle.read("older")
    answers = load_file(FOLDER / "weighted_prompts.safetensors")
    chunks = [_chunks(oracle, negative, prompt) for prompt, negative in CASES]
    encoded = _encode(oracle, chunks)
    assert {each.used for each in chunks} == {1, 2, 3}
    for slot, each in enumerate(chunks):
        for index, kind in enumerate(("negative", "text")):
            expected = answers[f"{kind}.{slot}"]
            assert len(expected) == each.used * 77
            found = encoded.hidden[slot, index, : len(expected)]
            assert worst(found, expected) < TOLERANCE, (slot, kind)


def test_sdxl_weighs_the_states_of_each_encoder_and_pools_the_first_chunk() -> None:
    oracle = Oracle.read("xl")
    chunks = [_chunks(oracle, negative, prompt) for prompt, negative in CASES]
    encoded = _encode(oracle, chunks)
    widths = [config.hidden_size for config in oracle.configs.text_encoders]
    for slot, each in enumerate(chunks):
        for index in range(2):
            states, pooled = _encode_one_by_one(oracle, [ids[index] for ids in each.ids])
            parts = np.split(states[: each.used * 77], [widths[0]], axis=-1)
            weights = [of_all[index].reshape(-1)[: each.used * 77, None] for of_all in each.weights]
            expected = np.concatenate(
                [
                    part * weight * (part.mean() / (part * weight).mean())
                    for part, weight in zip(parts, weights, strict=True)
                ],
                axis=-1,
            )
            found = encoded.hidden[slot, index, : len(expected)]
            assert worst(found, expected) < TOLERANCE, (slot, index)
            assert encoded.pooled is not None
            assert worst(encoded.pooled[slot, index], pooled) < TOLERANCE


def _encode_one_by_one(
    oracle: Oracle, ids: Sequence[NDArray[np.int32]]
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return the states of chunks `[k, n]`, each encoded as a prompt without weights."""
    slots = len(ids[0])
    plain = jax.jit(oracle.denoiser.prompt_encoder)(
        oracle.weights.text,
        [np.repeat(each[:, None, None], 2, axis=1) for each in ids],
        np.ones(slots, bool),
        np.zeros(slots, np.int32),
    )
    states = np.concatenate(np.asarray(plain.hidden[:, 1], np.float64))
    return states, np.asarray(plain.pooled)[0, 1]


def test_a_prompt_without_weights_has_the_states_of_the_plain_prompt_exactly(
    oracle: Oracle,
) -> None:
    prompts = ["a red circle", "blue"]
    plain = by_encoder(token_ids(oracle.load_tokenizer(), [prompts]))
    pieces = [pieces_of(prompt, weighting=True) for prompt in prompts]
    chunks = oracle.load_tokenizer().chunks(pieces, 1, most=1)
    np.testing.assert_array_equal(_stacked([chunks.ids]), plain)
    given, none_skipped = np.ones(1, bool), np.zeros(1, np.int32)
    encode = jax.jit(oracle.denoiser.prompt_encoder)
    expected = encode(oracle.weights.text, plain, given, none_skipped)
    found = encode(
        oracle.weights.text,
        plain,
        given,
        none_skipped,
        token_weights=_stacked([chunks.weights]),
        used_chunks=np.ones(1, np.int32),
    )
    np.testing.assert_array_equal(found.hidden, expected.hidden)


def test_layers_are_skipped_in_every_chunk() -> None:
    oracle = Oracle.read("older")
    chunks = _chunks(oracle, "blue", LONG)
    encode = jax.jit(oracle.denoiser.prompt_encoder)
    given, skip = np.ones(1, bool), np.ones(1, np.int32)
    ids, used = _stacked([chunks.ids]), np.array([chunks.used])
    weights = [np.ones_like(each) for each in _stacked([chunks.weights])]
    together = encode(oracle.weights.text, ids, given, skip, None, weights, used)
    for index in range(chunks.used):
        one = [each[:, :, index : index + 1] for each in ids]
        alone = encode(oracle.weights.text, one, given, skip)
        found = together.hidden[:, :, 77 * index : 77 * (index + 1)]
        assert worst(found, np.asarray(alone.hidden)) < TOLERANCE


def test_states_are_scaled_back_to_their_mean_within_a_limit() -> None:
    states = jnp.array([[[[1.0, 3.0], [2.0, -1.0]]]])
    used = jnp.ones((1, 1, 2), bool)
    cases: list[tuple[list[float], list[list[float]]]] = [
        ([1, 1], [[1, 3], [2, -1]]),
        ([2, 1], [[1 * 2 * 5 / 9, 3 * 2 * 5 / 9], [2 * 5 / 9, -1 * 5 / 9]]),
        ([1, -4], [[1, 3], [-8, 4]]),  # the mean is zero, so they keep their scale
        ([1, -3.999999], [[1_000, 3_000], [-7_999.998, 3_999.999]]),
    ]
    for weights, expected in cases:
        found = weigh(states, jnp.array([[weights]], jnp.float32), used)
        np.testing.assert_allclose(found[0, 0], expected, rtol=1e-6)
        half = weigh(states.astype(jnp.bfloat16), jnp.array([[weights]], jnp.float32), used)
        assert half.dtype == jnp.bfloat16
        np.testing.assert_allclose(half[0, 0].astype(jnp.float32), expected, rtol=1e-2)


def test_words_beyond_the_chunks_are_cut_and_reported() -> None:
    oracle = Oracle.read("older")
    tokenizer = oracle.load_tokenizer()
    fits, too_long = ([Piece(" ".join(["red"] * words))] for words in (150, 151))
    assert not tokenizer.truncated(fits, most=2)
    assert tokenizer.truncated(too_long, most=2)
    cut, whole = (tokenizer.chunks([each], 3, most=2) for each in (too_long, fits))
    assert (cut.used, whole.used) == (2, 2)
    np.testing.assert_array_equal(cut.ids, whole.ids)


@pytest.fixture(scope="module")
def engine(cache_dir: Path) -> DiffusionEngine:
    options = ModelOptions(prompt_chunks=MAX_CHUNKS)
    loaded = load_older(cache_dir, options=options, max_num_inference_steps=8)
    loaded.warm()
    return loaded


def _specs() -> list[ImageSpec]:
    pairs = [*CASES, (SPEC.prompt, SPEC.negative_prompt)]
    specs = [replace(WEIGHTED, prompt=prompt, negative_prompt=no) for prompt, no in pairs]
    return [*specs, replace(SPEC, prompt=LONG)]


def test_prompts_of_other_lengths_share_a_batch_and_each_is_bit_equal_to_itself_alone(
    engine: DiffusionEngine,
) -> None:
    specs, before = _specs(), engine.recompiles
    together = engine.start_batch(specs, NATIVE).images()
    for spec, image in zip(specs, together, strict=True):
        alone = engine.start_batch([spec], NATIVE).images()[0]
        np.testing.assert_array_equal(alone, image, err_msg=spec.prompt)
    assert engine.recompiles == before
    assert [engine.truncated(spec) for spec in specs] == [False] * 2 + [True] + [False] * 4 + [True]
    plain = engine.start_batch([SPEC], NATIVE).images()[0]
    np.testing.assert_array_equal(together[6], plain)


def test_the_unet_attends_to_the_chunks_of_a_prompt_and_to_no_others() -> None:
    """With a mask it computes what it computes from the used chunks alone."""
    oracle, rng = Oracle.read("older"), np.random.default_rng(0)
    width, channels = oracle.configs.unet.cross_attention_dim, oracle.configs.unet.in_channels
    hidden = rng.normal(size=(2, 2 * 77, width)).astype(np.float32)
    latents = rng.normal(size=(2, 8, 8, channels)).astype(np.float32)

    def predict(weights: Any, hidden: Any, mask: Any) -> jax.Array:
        network: Any = nnx.merge(oracle.denoiser.unet, weights)
        context = network.project_context(hidden)._replace(mask=mask)
        output: jax.Array = network(latents, np.full(2, 500, np.float32), context)
        return output

    run, unet = jax.jit(predict), oracle.weights.denoiser
    both, first = (np.asarray(used_tokens(jnp.asarray(used), 2, 77))[:, 0] for used in USED)
    masked = np.asarray(run(unet, hidden, both))
    alone = np.asarray(run(unet, hidden[:, :77], first[:, :77]))
    assert worst(masked[:1], alone[:1]) < TOLERANCE
    assert worst(masked[1:], alone[1:]) > 100 * TOLERANCE


def test_prompts_with_weights_run_in_a_stream(engine: DiffusionEngine, cache_dir: Path) -> None:
    options = ModelOptions(prompt_chunks=MAX_CHUNKS, streams=True)
    loaded = load_older(
        cache_dir, options=options, devices=1, per_device_batch=3, max_num_inference_steps=8
    )
    (stream,) = loaded.open_streams()
    specs = _specs()[2:4]
    for slot, spec in enumerate(specs):
        stream.start(slot, spec, NATIVE)
    while not stream.step():
        pass
    for slot, spec in enumerate(specs):
        expected = engine.start_batch([spec], NATIVE).images()[0]
        assert np.abs(stream.finish(slot)().pixels.astype(int) - expected).max() <= 1
    assert loaded.recompiles == 0


def test_a_worker_without_chunks_refuses_weights(cache_dir: Path) -> None:
    loaded = load_older(cache_dir, devices=1, max_num_inference_steps=8)
    with pytest.raises(ValueError, match="IMAGEFLEET_PROMPT_CHUNKS=0"):
        loaded._input_builder.inputs([WEIGHTED], NATIVE)
