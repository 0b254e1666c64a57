"""Run a text encoder on the CPU of the host, while all else runs on accelerators.

Input: the ids of one text. Output: its hidden states. The program is compiled once, for all shapes
and streams, and is not put into the cache of executables, which are those of the devices.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.denoiser_protocol import TextEncoding


class HostTextEncoder:
    """It has the weights of the text encoder, and its program."""

    def __init__(
        self, encoding: TextEncoding, weights: Weights, length: int, placement: Placement
    ) -> None:
        """Compile the program.

        Args:
            encoding: Of the model.
            weights: Those of the text encoder are in the memory of the host. Others are not used.
            length: The number of ids of a text.
            placement: The CPU of the host.
        """
        self._weights: Final = Weights(text=weights.text[:1], denoiser={}, vae={}, safety=None)
        self._placement: Final = placement
        ids = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (1, length), jnp.int32, sharding=placement.by_slot
        )
        with jax.set_mesh(placement.mesh):  # `attention` reads the current mesh
            self._program = jax.jit(encoding).lower(self._weights, ids).compile()

    def __call__(self, ids: NDArray[np.int32]) -> NDArray[Any]:
        """Map ids `[1, t]` to hidden states `[1, t, width]`."""
        return np.asarray(self._program(self._weights, self._placement.split(ids)))
