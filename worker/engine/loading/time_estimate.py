"""Estimate how long a TPU takes for the steps and the decoder of an image, from their FLOPs.

Input: a generation of TPUs, the dtype, the devices of a copy, and the FLOPs of a model. Output:
seconds, or None where the TPU compiler has compiled nothing like it.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
from imagefleet.worker.engine.networks.peak_shares import PeakShares
from imagefleet.worker.engine.placement.tpu_hosts import TpuGeneration


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """It estimates times on devices that hold `1 / devices_per_copy` of the weights."""

    generation: TpuGeneration
    dtype: np.dtype[Any]
    devices_per_copy: int = 1

    def step_seconds(self, flops: ImageFlops, images: int = 1) -> float | None:
        """Return the seconds of a step for this many images on a device."""
        shares = self._shares(flops)
        share = None if shares is None else shares.step(images * flops.step)
        return None if share is None else images * flops.step / (share * self.generation.flops)

    def image_seconds(self, flops: ImageFlops, steps: int) -> float | None:
        """Return the seconds of a batch that has one image on each device."""
        shares = self._shares(flops)
        step = self.step_seconds(flops)
        if shares is None or step is None:
            return None
        text = step * flops.text / flops.step
        return text + steps * step + flops.decode / (shares.decode * self.generation.flops)

    def _shares(self, flops: ImageFlops) -> PeakShares | None:
        # With several devices a copy our kernels are off, and devices wait for each other.
        if self.devices_per_copy > 1 or self.dtype != jnp.bfloat16:
            return None
        return flops.peak_shares.get(self.generation.name)
