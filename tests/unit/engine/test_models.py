"""The networks compute what diffusers' networks compute in PyTorch, from the same weights."""

from dataclasses import replace
from typing import Any, Final

import jax
import numpy as np
import pytest
from flax import nnx

from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.clip_text import ClipText
from tests.unit.engine.parity import Oracle, by_encoder, worst

TOLERANCE: Final = 5e-6
"""Relative tolerance. Measured: text 5e-7, UNet and its blocks 2e-6, autoencoder 1e-6. We promise
1e-4."""


def test_the_text_encoders_compute_the_same_states(oracle: Oracle) -> None:
    tokens = np.repeat(oracle.answers["tokens"][:, None], 2, axis=1)
    given, none_skipped = np.ones(len(tokens), bool), np.zeros(len(tokens), np.int32)
    encode = jax.jit(oracle.denoiser.prompt_encoder)
    ours = encode(oracle.weights.text, by_encoder(tokens), given, none_skipped)
    assert worst(ours.hidden[:, 0], oracle.answers["text"]) < TOLERANCE
    np.testing.assert_array_equal(ours.hidden[:, 1], ours.hidden[:, 0])
    if (pooled := oracle.answers.get("text.pooled")) is None:
        assert ours.pooled is None
    else:
        assert ours.pooled is not None
        assert worst(ours.pooled[:, 0], pooled) < TOLERANCE


def test_the_end_token_is_found_by_its_id_and_as_the_highest_id() -> None:
    xl = Oracle.read("xl")
    tokens, (_, network) = xl.answers["tokens"][:, 1], xl.denoiser.prompt_encoder.networks
    config = nnx.merge(network, xl.weights.text[1]).config
    known = replace(config, eos_token_id=int(tokens.max()))
    by_id = nnx.merge(nnx.graphdef(abstract_network(ClipText, known)), xl.weights.text[1])(tokens)
    assert worst(by_id.pooled, xl.answers["text.pooled"]) < TOLERANCE


@pytest.mark.parametrize("oracle", ["older", "newer", "xl"], indirect=True)
def test_the_unet_and_each_of_its_blocks_compute_the_same_feature_maps(oracle: Oracle) -> None:
    inputs = {key: _nhwc(value) for key, value in oracle.answers.items() if value.ndim == 4}
    times, text = oracle.answers["unet.times"], oracle.answers["text"][:2]
    text_time: tuple[Any, ...] = ()
    if "text.pooled" in oracle.answers:
        text_time = (oracle.answers["text.pooled"][:2], oracle.answers["unet.time_ids"][0])

    def run_every_block(weights: Any, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        unet: Any = nnx.merge(oracle.denoiser.unet, weights)
        maps = {key: FeatureMap(array) for key, array in arrays.items()}
        prompt = unet.project_context(text, *text_time)
        contexts, levels = prompt.blocks, len(unet.down_blocks)
        outputs = {"unet.out": unet(arrays["unet.latents"], times, prompt)}
        for level in range(levels):
            name = f"down_blocks.{level}"
            time = oracle.answers[f"{name}.time"]
            outs = unet.down_blocks[level](maps[f"{name}.x"], time, contexts[level])
            outputs |= {f"{name}.out.{index}": out.values for index, out in enumerate(outs)}
            name = f"up_blocks.{level}"
            keys = sorted((key for key in maps if key.startswith(f"{name}.skip.")), reverse=True)
            skips = [maps[key] for key in keys]  # its layers read the latest output first
            context = contexts[levels + 1 + level]
            outputs[f"{name}.out.0"] = unet.up_blocks[level](
                maps[f"{name}.x"], skips, time, context
            ).values
        time = oracle.answers["mid_block.time"]
        out = unet.mid_block(maps["mid_block.x"], time, contexts[levels])
        return outputs | {"mid_block.out.0": out.values}

    ours = jax.jit(run_every_block)(oracle.weights.denoiser, inputs)
    theirs = {key for key in inputs if key == "unet.out" or ("block" in key and ".out." in key)}
    assert theirs == ours.keys()
    errors = {key: worst(ours[key], inputs[key]) for key in theirs}
    assert max(errors.values()) < TOLERANCE, errors


def test_the_decoder_computes_the_same_pixels(oracle: Oracle) -> None:
    ours = jax.jit(lambda weights, latents: _vae(oracle, weights).decode(latents))(
        oracle.weights.vae, oracle.image("unet.latents")
    )
    assert worst(ours, oracle.image("vae.pixels")) < TOLERANCE


def test_the_encoder_computes_the_same_latents(oracle: Oracle) -> None:
    mean, log_variance = jax.jit(lambda weights, pixels: _vae(oracle, weights).encode(pixels))(
        oracle.weights.vae, oracle.image("vae.in")
    )
    assert worst(mean, oracle.image("vae.mean")) < TOLERANCE
    assert worst(log_variance, oracle.image("vae.logvar")) < TOLERANCE


def _nhwc(array: Any) -> Any:
    return np.moveaxis(array, -3, -1)


def _vae(oracle: Oracle, weights: Any) -> Any:
    return nnx.merge(oracle.programs.vae, weights)
