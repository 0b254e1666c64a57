"""Define the sizes of a convolution by the kernel for large maps, and the memory that it takes.

`large_convolution` chooses by them, and `convolution_kernel` computes with them.
"""

from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.kernels.attention_backend import TPU_LANES

KERNEL_NAME: Final = "convolution_of_rows"
"""The programs contain this name, so that `tools.tpu` finds the kernel there."""
NARROW_KERNEL_NAME: Final = "narrow_convolution"
MAX_NARROW: Final = 8
"""The kernel for narrow results takes up to this many channels: the rows of a register."""
_PRODUCT_BYTES: Final = 4 * 4 * 512
"""For each channel of the result, a block needs this many bytes: float32 sums of 512 pixels, and
what the compiler keeps beside them."""


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """It has the sizes of a convolution by the kernel, for one image."""

    height: int
    """It is the height of the map that is read. `width` is its width."""
    width: int
    channels_in: int
    channels_out: int
    upsamples: bool = False
    """Whether the map is upsampled by 2 before the convolution, in four phases."""
    has_residual: bool = False

    @property
    def lanes_in(self) -> int:
        """Return the columns of the registers that the channels of the map take."""
        return fill_up(self.channels_in)

    @property
    def lanes_out(self) -> int:
        """Return the columns of the registers that the channels of the result take."""
        return fill_up(self.channels_out)

    @property
    def is_narrow(self) -> bool:
        """Return whether `narrow_convolution_kernel` computes it: the last one of a network.

        Its registers have the pixels of a row as columns, of which some are empty if the width is
        no multiple of 128.
        """
        adds_nothing = not (self.upsamples or self.has_residual)
        return adds_nothing and self.channels_out <= MAX_NARROW

    @property
    def taps(self) -> int:
        """Return the number of products of a pixel of the map."""
        return 16 if self.upsamples else 9

    @property
    def flops(self) -> int:
        """Return the FLOPs of the products: each pixel of the map is multiplied by each weight."""
        return 2 * self.height * self.width * self.taps * self.channels_in * self.channels_out

    def memory_bytes(self, rows: int) -> int:
        """Return the bytes of a core's memory that blocks of this many rows take."""
        if self.is_narrow:
            return self._narrow_bytes(rows)
        weights = self.taps * self.lanes_in * self.lanes_out
        row_in = 2 * self.width * self.lanes_in
        row_out = 2 * self.width * self.lanes_out * (4 if self.upsamples else 1)
        # While a block is computed, the next one is read and the one before is written.
        blocks = 2 * ((rows + 2) * row_in + rows * row_out * (1 + self.has_residual))
        sums = self.lanes_out * max(_PRODUCT_BYTES, 4 * 4 * self.width)
        return 2 * weights + blocks + 3 * (rows + 2) * row_in + sums

    def _narrow_bytes(self, rows: int) -> int:
        products = 4 * self.taps * MAX_NARROW * fill_up(self.width)
        row_in, row_out = 2 * self.width * self.lanes_in, 2 * fill_up(self.width) * 2 * MAX_NARROW
        # While a block is computed, the next one is read and the one before is written. A row is
        # normalised in float32.
        return (rows + 2) * (2 * row_in + products) + 2 * rows * row_out + 4 * row_in


def fill_up(length: int) -> int:
    """Return the columns of whole registers that channels or pixels take."""
    return -(-length // TPU_LANES) * TPU_LANES
