"""Weights of a checkpoint into our networks, strictly.

Goes in: an abstract network (shapes only), the tensors of a checkpoint. Comes out: its parameters
on the devices. Our attribute names are the checkpoint's wherever they can be; the tables below are
the exceptions. A key that is missing, unused, given twice, misshapen or not of floating-point
numbers stops everything.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import numpy as np
from flax import nnx
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.files import TensorFiles
from imagefleet.worker.engine.mesh import Index, Placement

Names = Sequence[tuple[str, str]]
Arrays = dict[Any, Any]
"""A network's parameters, a tree of plain dictionaries: JAX takes it apart at every call, which
with nnx's own cost a batch of one a quarter of its time on CPU."""

DTYPES: Final = ("F32", "F16", "BF16")
"""What weights may be stored as, in safetensors' words."""
_ONE_OF: Final = " or ".join(DTYPES)
LEAVES: Final = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}

_CLIP_TEXT: Final[Names] = (
    (r"^(token|position)_embedding\b", r"embeddings.\1_embedding"),
    (r"^layers\b", "encoder.layers"),
)

OUR_NAMES: Final[Mapping[str, Names]] = {
    "text_encoder": _CLIP_TEXT,
    "text_encoder_2": _CLIP_TEXT,
    "unet": (
        (r"\b(up|down)sampler\b", r"\1samplers.0"),
        (r"\bto_out\b", "to_out.0"),
        (r"\bff\.proj_in\b", "ff.net.0.proj"),
        (r"\bff\.proj_out\b", "ff.net.2"),
    ),
    "vae": (
        (r"\b(up|down)sampler\b", r"\1samplers.0"),
        (r"\bto_out\b", "to_out.0"),
    ),
    "safety_checker": ((r"\bvision_model\.layers\b", "vision_model.encoder.layers"),),
}
"""(pattern in our path, the checkpoint's spelling)."""

OLD_NAMES: Final[Mapping[str, Names]] = {
    "text_encoder": ((r"^text_model\.", ""),),
    "text_encoder_2": ((r"^text_model\.", ""),),
    "unet": (),
    "vae": (
        (r"\battentions\.0\.query\b", "attentions.0.to_q"),
        (r"\battentions\.0\.key\b", "attentions.0.to_k"),
        (r"\battentions\.0\.value\b", "attentions.0.to_v"),
        (r"\battentions\.0\.proj_attn\b", "attentions.0.to_out.0"),
    ),
    "safety_checker": ((r"^vision_model\.vision_model\.", "vision_model."),),
}
"""(pattern in a key of an older file, today's spelling)."""

BUFFERS: Final[Mapping[str, frozenset[str]]] = {
    "text_encoder": frozenset({"embeddings.position_ids"}),  # 0, 1, 2, …, in older files
    "text_encoder_2": frozenset({"embeddings.position_ids"}),
    "unet": frozenset(),
    "vae": frozenset(),
    "safety_checker": frozenset({"vision_model.embeddings.position_ids"}),
}
"""Keys that hold no weight."""


@dataclass(frozen=True)
class WeightEntry:
    """One parameter of ours and the key that fills it."""

    path: tuple[Any, ...]
    key: str
    shape: tuple[int, ...]

    @property
    def stored_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What the key may be in a file: a linear layer may be stored as a 1x1 convolution."""
        if self.path[-1] != "kernel":
            return (self.shape,)
        if len(self.shape) == 4:
            height, width, channels_in, channels_out = self.shape
            return ((channels_out, channels_in, height, width),)
        return (self.shape[::-1], (*self.shape[::-1], 1, 1))

    def read(self, files: TensorFiles, key: str, index: Index) -> NDArray[Any]:
        """A part of it, from torch's layout: our kernels are input x output, and convolutions
        h x w x in x out. Only this part is read."""
        if self.path[-1] != "kernel":
            return files.part(key, index)
        if len(self.shape) == 4:
            height, width, channels_in, channels_out = index
            stored = files.part(key, (channels_out, channels_in, height, width))
            return stored.transpose(2, 3, 1, 0)
        whole = (slice(None),) * (len(files.shapes[key]) - 2)  # of a 1x1 convolution
        stored = files.part(key, (*index[::-1], *whole))
        return stored.reshape(stored.shape[:2]).T


def entries(network: str, model: nnx.Module) -> list[WeightEntry]:
    """Every parameter of a network with its key, in the order of the state."""
    found = []
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        *parts, leaf = (str(part) for part in path)
        key = _rewrite(".".join([*parts, LEAVES.get(leaf, leaf)]), OUR_NAMES[network])
        found.append(WeightEntry(path, key, tuple(variable.get_value().shape)))
    return found


class WeightMapping:
    """Which key fills which parameter of one network; says what does not fit."""

    def __init__(self, network: str, model: nnx.Module, files: TensorFiles) -> None:
        """
        Args:
            network: The folder's name, as in the tables above.
            model: The abstract network to fill.
            files: The checkpoint's tensors.
        """
        self._network, self._files = network, files
        self._entries = entries(network, model)
        self._spelling: dict[str, str] = {}
        self._twice: list[str] = []
        for key in sorted(files.shapes):
            name = _rewrite(key, OLD_NAMES[network])
            if (first := self._spelling.setdefault(name, key)) != key:
                self._twice.append(f"{first}, {key}")
        known = {entry.key for entry in self._entries} | BUFFERS[network]
        self._unused = sorted(self._spelling.keys() - known)

    def faults(self) -> list[str]:
        """A line for every key that is not as it must be."""
        missing = [entry.key for entry in self._entries if entry.key not in self._spelling]
        lines = [f"missing {self._network}: {key}" for key in missing]
        lines += [f"unused {self._network}: {key}" for key in self._unused]
        lines += [f"twice {self._network}: {keys}" for keys in self._twice]
        for entry in self._entries:
            if entry.key in self._spelling:
                lines += self._faults_of(entry, self._spelling[entry.key])
        return lines

    def _faults_of(self, entry: WeightEntry, key: str) -> list[str]:
        """Of a tensor that is there."""
        lines, shape, dtype = [], self._files.shapes[key], self._files.dtypes[key]
        if shape not in entry.stored_shapes:
            lines.append(
                f"misshapen {self._network}: {entry.key} is {list(shape)}, "
                f"the config makes it {list(entry.stored_shapes[0])}"
            )
        if dtype not in DTYPES:
            lines.append(f"mistyped {self._network}: {entry.key} is {dtype}, not {_ONE_OF}")
        return lines

    def bytes_on_a_device(self, dtype: np.dtype[Any], placement: Placement) -> int:
        """What `load` will put on each."""
        return sum(
            math.prod(placement.of_weight(entry.shape).shard_shape(entry.shape)) * dtype.itemsize
            for entry in self._entries
        )

    def load(self, dtype: np.dtype[Any], placement: Placement) -> Arrays:
        """Read, cast and place every parameter, one after the other, each in the parts that the
        devices take: the host never holds more than the parts of one."""
        flat = []
        for entry in self._entries:
            read = partial(entry.read, self._files, self._spelling[entry.key])
            flat.append((entry.path, placement.place_weight(entry.shape, dtype, read)))
        return cast(Arrays, nnx.to_pure_dict(nnx.from_flat_state(flat)))


def require_complete(plans: Iterable[WeightMapping]) -> None:
    """
    Raises:
        CheckpointError: every fault of every network, at once.
    """
    faults = [line for plan in plans for line in plan.faults()]
    if faults:
        raise CheckpointError(
            f"{len(faults)} weights do not fit the configs of this checkpoint:\n  "
            + "\n  ".join(faults)
        )


def _rewrite(name: str, table: Names) -> str:
    for pattern, spelling in table:
        name = re.sub(pattern, spelling, name)
    return name
