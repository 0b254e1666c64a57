"""Define layers to which each slot of a batch adds its own mixture of LoRA (Hu et al. 2021).

The factors of all LoRA of a layer lie side by side, so one pair of products serves every slot. It
adds up (s * (down x)), where s has the scale of each column's LoRA in this slot. The factors are
weights and the scales are inputs, so one program serves every mixture, and slots never mix.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.job_loras import LORA, Columns, StackedFactors
from imagefleet.worker.engine.kernels.convolution import convolve
from imagefleet.worker.engine.networks.int8_layers import Int8Linear


class SlotScales(nnx.Variable[jax.Array]):
    """It is the scale of each column of a layer's LoRA in each slot, float32 `[slots, columns]`."""


class LoraLayer(nnx.Module):
    """It is a linear layer or a convolution with LoRA beside it."""

    def __init__(
        self,
        layer: nnx.Linear | Int8Linear | nnx.Conv,
        columns: Columns,
        factors: StackedFactors,
        scales: jax.Array,
    ) -> None:
        """
        Args:
            layer: It has the weights of the model.
            columns: Of the factors.
            factors: Of the LoRA.
            scales: float32 `[slots, LoRA]`.
        """
        self.layer = layer
        self.factors = nnx.data(factors)
        self.scales = SlotScales(scales[:, np.array(columns)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x [slots * n, …, in]` to `[slots * n, …, out]`. A slot has n adjacent rows."""
        added: jax.Array = self.scale_columns(self._project_down(x)) @ self.factors.up
        return self.layer(x) + added

    def scale_columns(self, hidden: jax.Array) -> jax.Array:
        """Scale each column of `hidden [slots * n, …, columns]`, what `down` makes, as the slot
        wants it."""
        scales = self.scales_of(len(hidden))
        scales = scales.reshape(len(hidden), *[1] * (hidden.ndim - 2), -1)
        return (hidden * scales).astype(hidden.dtype)

    def scales_of(self, rows: int) -> jax.Array:
        """Return the scales of the columns of `down` in each row of a batch, `[rows, columns]`."""
        return jnp.repeat(self.scales[...], rows // len(self.scales[...]), axis=0)

    def _project_down(self, x: jax.Array) -> jax.Array:
        layer, down = self.layer, self.factors.down
        if not isinstance(layer, nnx.Conv):
            hidden: jax.Array = x @ down
            return hidden
        strides, padding = cast(int, layer.strides), cast(Sequence[tuple[int, int]], layer.padding)
        axes = ("NHWC", "HWIO", "NHWC")
        return convolve(x, down, (strides, strides), padding, dimension_numbers=axes)


def split_layer(layer: Any) -> tuple[nnx.Linear, LoraLayer | None]:
    """Return a linear layer without LoRA, and the layer with LoRA if it has any."""
    if isinstance(layer, LoraLayer):
        return cast(nnx.Linear, layer.layer), layer
    return cast(nnx.Linear, layer), None


def merge_network(
    graph: nnx.GraphDef[Any], params: Mapping[Any, Any], scales: jax.Array | None
) -> Any:
    """Return the network with its weights.

    Args:
        graph: Its structure.
        params: Its parameters. Those of a layer may have factors of LoRA under the key `LORA`.
        scales: float32 `[slots, LoRA]`. None: no layer has LoRA.
    """
    if scales is None:
        return nnx.merge(graph, params)
    network = nnx.merge(graph, _without_factors(params))
    for path, columns, factors in _factors(params):
        *parents, name = path
        parent = network
        for part in parents:
            parent = parent[part] if isinstance(part, int) else getattr(parent, part)
        setattr(parent, name, LoraLayer(getattr(parent, name), columns, factors, scales))
    return network


def _without_factors(params: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        name: _without_factors(value) if isinstance(value, Mapping) else value
        for name, value in params.items()
        if name != LORA
    }


def _factors(
    params: Mapping[Any, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Columns, StackedFactors]]:
    """Yield the path of each layer that has factors, with the factors and their columns."""
    for name, value in params.items():
        if name == LORA:
            [(columns, factors)] = value.items()
            yield path, columns, factors
        elif isinstance(value, Mapping):
            yield from _factors(value, (*path, name))
