"""Place the factors of LoRA on devices, and describe weights that are not there by their shapes.

Input: networks, factors, and devices, which may be absent. Output: arrays, or their shapes with
dtype and sharding, so that programs can be compiled without a checkpoint.
"""

from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.int8_weights import INT8
from imagefleet.worker.engine.checkpoint.job_loras import StackedFactors
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.weights import Params, weight_entries
from imagefleet.worker.engine.placement.mesh import Placement


def abstract_weights(
    networks: Mapping[str, nnx.Module], placement: Placement, dtype: np.dtype[Any]
) -> dict[str, Params]:
    """Return the parameters of each network as shapes, with their dtype and sharding.

    `dtype` is that of all weights but integers of 8 bits.
    """

    def abstract(weight: Any) -> jax.ShapeDtypeStruct:
        sharding = placement.weight_sharding(weight.shape)
        return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            weight.shape, held_dtype(weight, dtype), sharding=sharding
        )

    return {
        name: cast(Params, jax.tree.map(abstract, nnx.to_pure_dict(nnx.state(network))))
        for name, network in networks.items()
    }


def held_dtype(weight: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which devices hold a weight, an abstract one of a network, if `dtype` is
    that of the model."""
    return INT8 if weight.dtype == INT8 else dtype


def place_factors(
    factors: StackedFactors, placement: Placement, dtype: np.dtype[Any]
) -> StackedFactors:
    """Place factors of LoRA on the devices. `up` is split like the weight beside which it is."""
    splits = factor_shardings(factors, placement)
    down, up = (each.astype(dtype) for each in factors)
    share = placement.as_devices_share_it
    return StackedFactors(
        jax.device_put(share(down), splits.down), jax.device_put(share(up), splits.up)
    )


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
    """Return the shardings of factors. Their columns are few, so every device has all of them."""
    return StackedFactors(placement.replicated, placement.output_sharding(factors.up.shape[1]))


def trained_shapes(
    networks: Mapping[str, nnx.Module], names: LoraNames
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return by network and key the shapes of the weights to which a LoRA may be added."""
    return {
        name: {entry.key: entry.stored_shapes[0] for entry in weight_entries(networks[name])}
        for name in networks
        if name in names.networks
    }
