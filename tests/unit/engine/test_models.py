"""The networks are PyTorch diffusers' networks: same weights, same inputs, same outputs."""

from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from tests.unit.engine.parity import Oracle, worst
from worker.engine.checkpoint import TensorFiles
from worker.engine.models.unet import UNet
from worker.engine.models.vae import VaeEncoder
from worker.engine.stable_diffusion import abstract
from worker.engine.weights import Plan

TIGHT: Final = 5e-6
"""Measured: text 5e-7, UNet 2e-6, its blocks 2e-6, autoencoder 1e-6. Promised: 1e-4."""


def test_the_text_encoder_gives_the_same_hidden_states(oracle: Oracle) -> None:
    ours = jax.jit(
        lambda weights, tokens: nnx.merge(oracle.sampler.prompts.networks[0], weights)(tokens)
    )(oracle.weights.text[0], oracle.answers["tokens"])
    assert worst(ours.last, oracle.answers["text"]) < TIGHT


def test_the_unet_and_each_of_its_blocks_give_the_same_maps(oracle: Oracle) -> None:
    inputs = {key: _nhwc(value) for key, value in oracle.answers.items() if value.ndim == 4}
    times, context = oracle.answers["unet.times"], oracle.answers["text"][:2]

    def every_block(weights: Any, maps: dict[str, jax.Array]) -> dict[str, jax.Array]:
        unet: UNet = nnx.merge(oracle.sampler.unet, weights)
        read = unet.read(context)
        texts, levels = read.texts, len(unet.down_blocks)
        found = {"unet.out": unet(maps["unet.latents"], times, read)}
        for level in range(levels):
            name = f"down_blocks.{level}"
            time = oracle.answers[f"{name}.time"]
            outs = unet.down_blocks[level](maps[f"{name}.x"], time, texts[level])
            found |= {f"{name}.out.{index}": out for index, out in enumerate(outs)}
            name = f"up_blocks.{level}"
            skips = [maps[key] for key in sorted(maps) if key.startswith(f"{name}.skip.")]
            out = unet.up_blocks[level](maps[f"{name}.x"], skips, time, texts[levels + 1 + level])
            found[f"{name}.out.0"] = out
        time = oracle.answers["mid_block.time"]
        out = unet.mid_block(maps["mid_block.x"], time, texts[levels])
        return found | {"mid_block.out.0": out}

    ours = jax.jit(every_block)(oracle.weights.unet, inputs)
    theirs = {key for key in inputs if key == "unet.out" or ("block" in key and ".out." in key)}
    assert theirs == ours.keys()
    errors = {key: worst(ours[key], inputs[key]) for key in theirs}
    assert max(errors.values()) < TIGHT, errors


def test_the_decoder_gives_the_same_pixels(oracle: Oracle) -> None:
    ours = jax.jit(lambda weights, latents: nnx.merge(oracle.sampler.vae, weights)(latents))(
        oracle.weights.vae, oracle.image("unet.latents")
    )
    assert worst(ours, oracle.image("vae.pixels")) < TIGHT


def test_the_encoder_gives_the_same_latents(oracle: Oracle) -> None:
    encoder = abstract(VaeEncoder, oracle.configs.vae)
    files = TensorFiles(oracle.folder / "vae")
    weights = Plan("vae", encoder, files).load(np.dtype(np.float32), jax.numpy.asarray)
    mean, log_variance = jax.jit(
        lambda weights, pixels: nnx.merge(nnx.graphdef(encoder), weights)(pixels)
    )(weights, oracle.image("vae.in"))
    assert worst(mean, oracle.image("vae.mean")) < TIGHT
    assert worst(log_variance, oracle.image("vae.logvar")) < TIGHT


def _nhwc(array: Any) -> Any:
    return np.moveaxis(array, -3, -1)
