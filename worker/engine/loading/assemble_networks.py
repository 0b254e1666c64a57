"""Arrange the networks of a model as programs and weights.

Input: configs. Output: the programs, which hold the networks' structure, and the weights. The
weights may be abstract, so that programs can be compiled without a checkpoint and without devices.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.prompt_encoder import PromptEncoder
from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
from imagefleet.worker.engine.networks.clip_text import ClipText
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.lora_layers import StackedFactors
from imagefleet.worker.engine.networks.safety import SafetyChecker
from imagefleet.worker.engine.networks.vae import Vae
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms


def abstract_networks(configs: Configs) -> dict[str, nnx.Module]:
    """Return the networks without weights, keyed by their folders."""
    networks = {
        name: abstract_network(ClipText, config)
        for name, config in zip(configs.family.text_encoders, configs.text_encoders, strict=True)
    }
    networks |= {
        "unet": abstract_network(UNet, configs.unet),
        "vae": abstract_network(Vae, configs.vae),
    }
    if configs.safety is not None:
        networks["safety_checker"] = abstract_network(SafetyChecker, configs.safety)
    return networks


@lru_cache(maxsize=32)
def abstract_network(network: Callable[..., nnx.Module], config: Hashable) -> nnx.Module:
    """Return the network with shapes instead of weights, so that no weight is initialised.

    Making one takes up to a second, so models with the same config share it. Do not change it.
    """
    return nnx.eval_shape(lambda: network(config))


def abstract_weights(
    networks: Mapping[str, nnx.Module], placement: Placement, dtype: np.dtype[Any]
) -> dict[str, Params]:
    """Return the parameters of each network as shapes, with their dtype and sharding."""

    def abstract(weight: Any) -> jax.ShapeDtypeStruct:
        sharding = placement.weight_sharding(weight.shape)
        return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            weight.shape, dtype, sharding=sharding
        )

    return {
        name: cast(Params, jax.tree.map(abstract, nnx.to_pure_dict(nnx.state(network))))
        for name, network in networks.items()
    }


def place_factors(
    factors: StackedFactors, placement: Placement, dtype: np.dtype[Any]
) -> StackedFactors:
    """Place factors of LoRA on the devices. `up` is split like the weight beside which it is."""
    splits = factor_shardings(factors, placement)
    down, up = (each.astype(dtype) for each in factors)
    return StackedFactors(jax.device_put(down, splits.down), jax.device_put(up, splits.up))


def abstract_factors(
    factors: StackedFactors, placement: Placement, dtype: np.dtype[Any]
) -> StackedFactors:
    """Return factors of LoRA as shapes, as `place_factors` places them."""
    arrays = [
        jax.ShapeDtypeStruct(each.shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]
        for each, sharding in zip(factors, factor_shardings(factors, placement), strict=True)
    ]
    return StackedFactors(*arrays)


def factor_shardings(factors: StackedFactors, placement: Placement) -> StackedFactors:
    """Return the shardings of factors. The few columns between them are whole on every device."""
    return StackedFactors(placement.replicated, placement.output_sharding(factors.up.shape[1]))


def assemble(
    configs: Configs,
    networks: Mapping[str, nnx.Module],
    parameters: Mapping[str, Params],
    dtype: np.dtype[Any],
) -> tuple[DiffusionPrograms, Weights]:
    """Return the programs of a model and its weights.

    Args:
        configs: Of the model.
        networks: From `abstract_networks`.
        parameters: Of each network, on the devices or abstract.
        dtype: That of the parameters.
    """
    graphs: dict[str, Any] = {name: nnx.graphdef(network) for name, network in networks.items()}
    text_encoders = configs.family.text_encoders
    programs = DiffusionPrograms(
        prompt_encoder=PromptEncoder(
            networks=tuple(graphs[name] for name in text_encoders),
            force_zeros_for_empty_prompt=configs.force_zeros_for_empty_prompt,
            is_xl=configs.family.is_xl,
        ),
        unet=graphs["unet"],
        vae=graphs["vae"],
        safety=graphs.get("safety_checker"),
        latent_channels=configs.vae.latent_channels,
        latent_scale=LatentScale.of(configs.vae),
        pixels_per_latent=configs.vae.downsampling,
        dtype=dtype,
        unet_image=configs.family.unet_image,
        has_aesthetic_scores=configs.family.has_aesthetic_scores,
    )
    return programs, Weights(
        text=tuple(parameters[name] for name in text_encoders),
        unet=parameters["unet"],
        vae=parameters["vae"],
        safety=parameters.get("safety_checker"),
    )
