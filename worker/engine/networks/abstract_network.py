"""Make networks with shapes instead of weights."""

from collections.abc import Callable, Hashable
from functools import lru_cache

from flax import nnx


@lru_cache(maxsize=32)
def abstract_network(network: Callable[..., nnx.Module], config: Hashable) -> nnx.Module:
    """Return the network with shapes instead of weights, so that no weight is initialised.

    Making one takes up to a second, so models with the same config share it. Do not change it.
    """
    return nnx.eval_shape(lambda: network(config))
