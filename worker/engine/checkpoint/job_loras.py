"""Put the factors of LoRA that jobs choose among the parameters of a model.

Input: LoRA files and the weights that they fit. Output: the factors of each layer, side by side,
placed on the devices. `worker.engine.networks.lora_layers` computes with them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.lora import (
    Floats,
    LoraFactors,
    Loras,
    Shapes,
    applied_loras,
    read_loras,
)
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.weights import Params, WeightEntry
from imagefleet.worker.engine.options.lora_options import JobLora, LoraOption

LORA: Final = "lora"
"""A layer's factors have this key among its parameters, beside `kernel` and `bias`."""
Columns = tuple[int, ...]
"""For each column of `down`, it has the number of the LoRA that the column belongs to. It
determines the program, and is therefore a key of the tree of parameters."""


class StackedFactors(NamedTuple):
    """It has the factors of all LoRA of a layer, side by side."""

    down: Any
    """It is `[in, columns]`; for a convolution it is `[h, w, in, columns]`."""
    up: Any
    """It is `[columns, out]`, times alpha / rank."""


PlaceFactors = Callable[[StackedFactors], StackedFactors]
"""It takes factors, float32 in numpy, and returns them as arrays on the devices or as abstract
arrays."""


def job_loras(options: Sequence[LoraOption]) -> tuple[JobLora, ...]:
    """Return the names and digests of files that were read."""
    return tuple(JobLora(name=each.name, digest=each.digest) for each in applied_loras(options))


class JobLoraFactors:
    """It has the factors of all files, by the layers that they fit."""

    def __init__(self, options: Sequence[LoraOption], shapes: Shapes, names: LoraNames) -> None:
        """Read the files. `shapes` and `names` are those of `read_loras`.

        Raises:
            CheckpointError: A file is missing or damaged, is no plain LoRA, or does not fit the
                model.
        """
        self._options = options
        self._loras: list[Loras] = [read_loras([option], shapes, names) for option in options]

    @property
    def size(self) -> int:
        """Return how many numbers the factors have."""
        return sum(
            factors.down.size + factors.up.size
            for loras in self._loras
            for by_key in loras.values()
            for listed in by_key.values()
            for factors in listed
        )

    def add_to(
        self, network: str, params: Params, entries: Sequence[WeightEntry], place: PlaceFactors
    ) -> None:
        """Place the factors of a network, and put them beside the weights of their layers.

        Raises:
            CheckpointError: A file has factors for a weight that is no linear layer and no
                convolution.
        """
        for entry in entries:
            found = [
                (number, factors)
                for number, loras in enumerate(self._loras)
                for factors in loras.get(network, {}).get(entry.key, ())
            ]
            if not found:
                continue
            *parents, leaf = entry.path
            if leaf != "kernel":
                option = self._options[found[0][0]]
                raise CheckpointError(
                    f"{option.path}: {network} {entry.key} is no linear layer and no convolution, "
                    "so jobs cannot use it; merge the file: "
                    f"IMAGEFLEET_LORA={option.name}={option.path}"
                )
            layer: Any = params
            for name in parents:
                layer = layer[name]
            columns, stacked = _stack(found, entry)
            layer[LORA] = {columns: place(stacked)}


def _stack(
    found: Sequence[tuple[int, LoraFactors]], entry: WeightEntry
) -> tuple[Columns, StackedFactors]:
    """Return the number of the LoRA of each column, and the factors side by side, in our layout."""
    columns = tuple(number for number, factors in found for _ in factors.down)
    downs = [_down(factors.down, entry.shape) for _, factors in found]
    ups = [factors.scale * factors.up.T for _, factors in found]
    return columns, StackedFactors(np.concatenate(downs, axis=-1), np.concatenate(ups))


def _down(down: Floats, shape: tuple[int, ...]) -> Floats:
    """Return `[rank, in, …]` of torch as `[…, in, rank]`, for a weight of `shape` in our layout."""
    if len(shape) == 2:
        return down.reshape(len(down), -1).T
    height, width, channels, _ = shape
    return down.reshape(len(down), channels, height, width).transpose(2, 3, 1, 0)
