"""Compare a transformer block on two devices, which share its weights, with that on one device.

Each device computes one of two rows with the kernel for heads side by side, in the interpreter, and
with LoRA beside a projection. The exit code is not 0 if the results differ, or if the devices
exchange more than weights.
"""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.checkpoint.job_loras import StackedFactors
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import (
    ContextKV,
    TransformerBlock,
)
from imagefleet.worker.engine.kernels import packed_attention
from imagefleet.worker.engine.networks.lora_layers import LoraLayer
from imagefleet.worker.engine.networks.row_split import compute_by_rows, splits_rows
from imagefleet.worker.engine.placement.mesh import Placement

CHANNELS, HEADS, PIXELS, RANK = 128, 2, 256, 4


def _draw(*shape: int, seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def _run(block: TransformerBlock, x: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return block(x, ContextKV(key, value))


def main() -> None:
    placement = Placement.of(2, model=2)
    graph, state = nnx.split(TransformerBlock(CHANNELS, CHANNELS, HEADS))
    weights = jax.tree.map(lambda x: _draw(*x.shape, seed=x.size) / len(x) ** 0.5, state)
    arrays = tuple(_draw(2, length, CHANNELS, seed=n) for n, length in enumerate((PIXELS, 77, 77)))
    factors = StackedFactors(_draw(CHANNELS, RANK, seed=3) / 8, _draw(RANK, CHANNELS, seed=4) / 8)
    scales = jnp.array([[1.0, -0.5]])  # of one slot, whose two rows are on different devices

    def compute(run: Any, weights: Any, scales: jax.Array, *arrays: jax.Array) -> jax.Array:
        block = nnx.merge(graph, weights)
        lora: Any = LoraLayer(block.attn1.to_q, (0, 0, 1, 1), factors, scales)
        block.attn1.to_q = lora
        result: jax.Array = run(_run, block, *arrays)
        return result

    expected = compute(lambda run, *rest: run(*rest), weights, scales, *arrays)
    split = jax.tree.map(lambda x: jax.device_put(x, placement.weight_sharding(x.shape)), weights)
    operands = (split, placement.replicate(scales), *placement.split(arrays))
    with (
        patch.object(packed_attention, "target_device", lambda: SimpleNamespace(platform="tpu")),
        pltpu.force_tpu_interpret_mode(),
        jax.set_mesh(placement.mesh),
    ):
        assert splits_rows(2, PIXELS, CHANNELS)
        lowered = jax.jit(lambda *given: compute(compute_by_rows, *given)).lower(*operands)
        assert "callback" in (lowered.as_text() or ""), "the kernel does not run"
        compiled = lowered.compile()
        result = compiled(*operands)
    np.testing.assert_allclose(result, expected, atol=2e-5)
    assert "all-gather" in (compiled.as_text() or "")
    assert "all-reduce" not in (compiled.as_text() or ""), "sums of maps are exchanged"


if __name__ == "__main__":
    main()
