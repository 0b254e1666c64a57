"""Make networks with shapes instead of weights."""

from collections.abc import Callable, Hashable
from functools import lru_cache

from flax import nnx

from imagefleet.worker.engine.networks.unset_weights import described_weights


@lru_cache(maxsize=32)
def abstract_network(network: Callable[..., nnx.Module], config: Hashable) -> nnx.Module:
    """Return the network with shapes instead of weights, so that no weight is initialised.

    Making one takes up to half a second, so models with the same config share it. Do not change it.
    """
    with described_weights():
        return network(config)
