"""Make networks with shapes instead of weights."""

from collections.abc import Callable, Hashable
from functools import lru_cache

from flax import nnx

from imagefleet.worker.engine.networks.int8_layers import round_blocks
from imagefleet.worker.engine.networks.unset_weights import described_weights


@lru_cache(maxsize=32)
def abstract_network(
    network: Callable[..., nnx.Module], config: Hashable, *, int8: bool = False
) -> nnx.Module:
    """Return the network with shapes instead of weights, so that no weight is initialised.

    Making one takes up to half a second, so models with the same config share it. Do not change it.

    Args:
        network: Makes it from its config.
        config: That of the checkpoint.
        int8: Whether the weights of its blocks are integers of 8 bits.
    """
    with described_weights():
        made = network(config)
        if int8:
            round_blocks(made)
    return made
