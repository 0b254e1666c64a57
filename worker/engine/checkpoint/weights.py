"""Load the weights of a checkpoint into our networks, strictly.

Input: an abstract network (shapes only) and the tensors of a checkpoint. Output: its parameters on
the devices. Our attribute names are those of the checkpoint where possible; the `weight_names` of
each network lists the exceptions. Loading fails if any key is missing, unused or duplicate, has the
wrong shape or a dtype that is not floating-point, or holds NaN or infinity.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import numpy as np
from flax import nnx
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.checkpoint.int8_weights import INT8, SCALES, place_int8
from imagefleet.worker.engine.checkpoint.lora import LoraFactors, MergedTensors
from imagefleet.worker.engine.checkpoint.mismatches import (
    Mismatches,
    likely_reason,
    mismatch_message,
)
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.placement.mesh import Index, Placement

RenameRules = Sequence[tuple[str, str]]
"""Each rule is a regular expression and its replacement. The rules are applied in order."""
Params = dict[Any, Any]
"""It has the parameters of a network as a tree of plain dictionaries. JAX flattens it at every
call; with an nnx.State, that took a quarter of the time of a batch of one on CPU."""

_EXPONENTS: Final[Mapping[str, tuple[type[np.unsignedinteger[Any]], int]]] = {
    "F64": (np.uint32, 0x7F800000),  # read in float32
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F8_E5M2": (np.uint8, 0x7C),
    "F8_E4M3": (np.uint8, 0x7F),
}
"""By the dtype of a stored weight, as safetensors spells it, it has the unsigned integer of its
width, and the bits that are all set in NaN and infinity only. Comparing them takes a tenth of the
time of numpy's `isfinite` on these dtypes. Other dtypes are not read."""
_VALUES_AT_ONCE: Final = 1 << 18
"""This many numbers are checked at once, so that the intermediate results stay in the cache."""
LEAF_NAMES: Final = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}


@dataclass(frozen=True, kw_only=True)
class WeightNames:
    """It says how checkpoints name the weights of a network. The network has it as
    `weight_names`."""

    to_checkpoint: RenameRules = ()
    """These rules turn our parameter path into the checkpoint's key."""
    from_old: RenameRules = ()
    """By these rules, a key in files of older library versions becomes the current key."""
    old_in_shards: bool = True
    """Whether diffusers and transformers also read the old keys if the weights are in shards."""
    buffers: frozenset[str] = frozenset()
    """These keys are those of constant buffers, which are not weights."""
    unread: re.Pattern[str] | None = None
    """Keys that match are those of layers which the checkpoint's model has, and this network does
    not compute. They may be there or not."""

    @classmethod
    def of(cls, network: nnx.Module) -> "WeightNames":
        """Return the names of a network. If it has none, the keys are our paths."""
        names: WeightNames = getattr(network, "weight_names", cls())
        return names

    def may_be_unused(self, key: str) -> bool:
        """Return whether a file may have a key that the network has not."""
        return key in self.buffers or (self.unread is not None and bool(self.unread.fullmatch(key)))


@dataclass(frozen=True)
class WeightEntry:
    """It is one parameter of a network, with the checkpoint key that fills it."""

    path: tuple[Any, ...]
    key: str
    shape: tuple[int, ...]
    is_int8: bool = False
    """Whether the network has it as integers of 8 bits, and scales beside it."""

    @property
    def stored_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that the key may have in a file.

        A linear layer may be stored as a 1x1 convolution.
        """
        if self.path[-1] != "kernel":
            return (self.shape,)
        if len(self.shape) == 4:
            height, width, channels_in, channels_out = self.shape
            return ((channels_out, channels_in, height, width),)
        return (self.shape[::-1], (*self.shape[::-1], 1, 1))

    def read(self, files: TensorFiles, key: str, index: Index) -> NDArray[Any]:
        """Read one slice of the parameter, check it and convert it from torch's layout.

        Our linear kernels are `[in, out]`, torch's `[out, in]`; our convolution kernels are
        `[h, w, in, out]`, torch's `[out, in, h, w]`. Only this slice is read.

        Args:
            files: The open files.
            key: The key as these files spell it.
            index: The slice, in our layout.

        Raises:
            NotFiniteError: The slice holds NaN or infinity.
        """
        if self.path[-1] != "kernel":
            return _read_finite(files, key, index)
        if len(self.shape) == 4:
            height, width, channels_in, channels_out = index
            stored = _read_finite(files, key, (channels_out, channels_in, height, width))
            return stored.transpose(2, 3, 1, 0)
        trailing = (slice(None),) * (len(files.shapes[key]) - 2)  # the 1x1 of a convolution
        stored = _read_finite(files, key, (*index[::-1], *trailing))
        return stored.reshape(stored.shape[:2]).T


def weight_entries(network: nnx.Module) -> list[WeightEntry]:
    """Return every parameter of a network with its key, in the order of the nnx state.

    Scales of integers of 8 bits have none: they are computed.
    """
    entries, rules = [], WeightNames.of(network).to_checkpoint
    for path, variable in nnx.to_flat_state(nnx.state(network)):
        *parts, leaf = (str(part) for part in path)
        if leaf == SCALES:
            continue
        weight = variable.get_value()
        key = _rewrite(".".join([*parts, LEAF_NAMES.get(leaf, leaf)]), rules)
        entries.append(WeightEntry(path, key, tuple(weight.shape), weight.dtype == INT8))
    return entries


class NotFiniteError(ValueError):
    """A tensor holds NaN or infinity. The message is its key."""


class WeightMapping:
    """It maps checkpoint keys to the parameters of one network."""

    def __init__(self, network: str, model: nnx.Module, files: TensorFiles) -> None:
        """Match the parameters of `model` with the keys in `files`.

        Args:
            network: The name of the network's folder, for errors.
            model: The abstract network.
            files: The network's weight files.

        Raises:
            CheckpointError: The files are shards with keys that diffusers does not read in shards.
        """
        self._network, self._files = network, files
        self._entries, names = weight_entries(model), WeightNames.of(model)
        self._stored_keys: dict[str, str] = {}
        """It has the key in the files, by the current key."""
        self._duplicates: list[str] = []
        for stored_key in sorted(files.shapes):
            key = _rewrite(stored_key, names.from_old)
            if key != stored_key and files.is_sharded and not names.old_in_shards:
                raise CheckpointError(
                    f"{network}: {stored_key} is a name of 2022, which diffusers does not read "
                    "in shards (it would draw that weight at random); load the model from one file "
                    "with diffusers and save it again"
                )
            if (first := self._stored_keys.setdefault(key, stored_key)) != stored_key:
                self._duplicates.append(f"{first} and {stored_key}")
        known = {entry.key for entry in self._entries}
        others = sorted(self._stored_keys.keys() - known)
        self._unused = [key for key in others if not names.may_be_unused(key)]

    def mismatches(self) -> Mismatches:
        """Return every key that does not match the network."""
        lines = [f"{self._network}: {key} is missing" for key in self._missing]
        lines += [f"{self._network}: {key} is not a weight of this network" for key in self._unused]
        lines += [f"{self._network}: {keys} are the same weight" for keys in self._duplicates]
        lines += self._shape_mismatches()
        share = len(self._missing) / len(self._entries)
        return Mismatches(lines, likely_reason(self._network, self._stored_keys, share))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight in its file, by key."""
        return {
            entry.key: self._files.shapes[self._stored_keys[entry.key]] for entry in self._entries
        }

    @property
    def _missing(self) -> list[str]:
        return [entry.key for entry in self._entries if entry.key not in self._stored_keys]

    def _shape_mismatches(self) -> Iterator[str]:
        for entry in self._entries:
            shape = self._files.shapes.get(self._stored_keys.get(entry.key, ""))
            if shape is not None and shape not in entry.stored_shapes:
                yield (
                    f"{self._network}: {entry.key} has shape {list(shape)}, "
                    f"but the config requires {list(entry.stored_shapes[0])}"
                )

    def require_dtypes(self) -> None:
        """Check that the weights have dtypes that are read.

        Raises:
            CheckpointError: Some have not. They may be those of a quantized model.
        """
        stored = {
            entry.key: self._files.dtypes[self._stored_keys[entry.key]]
            for entry in self._entries
            if entry.key in self._stored_keys
        }
        others = {key: dtype for key, dtype in stored.items() if dtype not in _EXPONENTS}
        if others:
            first, count = next(iter(others)), counted(len(others), "such weight")
            *names, last = _EXPONENTS
            raise CheckpointError(
                f"{self._network}: {first} has dtype {others[first]}, but must have "
                f"{', '.join(names)} or {last} ({count}); save the model again in one of these "
                "dtypes, without quantization"
            )

    def load(
        self,
        dtype: np.dtype[Any],
        placement: Placement,
        loras: Mapping[str, Sequence[LoraFactors]] | None = None,
    ) -> Params:
        """Read every parameter, add LoRA to it, cast or round it and place it on the devices.

        Parameters are read one at a time and in the slices that the devices hold, so the host never
        holds more than the slices of one parameter. `loras` are by key.
        """
        flat: list[tuple[Any, Any]] = []
        files = self._files
        if loras:
            files = MergedTensors(
                files, {self._stored_keys[key]: factors for key, factors in loras.items()}
            )
        for entry in self._entries:
            read = partial(entry.read, files, self._stored_keys[entry.key])
            try:
                if entry.is_int8:
                    flat += place_int8(entry.path, entry.shape, read, dtype, placement)
                else:
                    flat.append((entry.path, placement.place_weight(entry.shape, dtype, read)))
            except NotFiniteError as error:
                raise CheckpointError(
                    f"{self._network}: {error} holds NaN or infinity; every weight must be a "
                    "finite number, so download the file again or take another checkpoint"
                ) from error
        return cast(Params, nnx.to_pure_dict(nnx.from_flat_state(flat)))


def require_complete(mappings: Iterable[WeightMapping]) -> None:
    """Check that every weight file matches its network.

    Raises:
        CheckpointError: Some dtype is not read, or some key does not match. The error then lists
            the first mismatches, their number and the likely reason for each network.
    """
    mismatches = []
    for mapping in mappings:
        mapping.require_dtypes()
        mismatches.append(mapping.mismatches())
    if any(each.lines for each in mismatches):
        raise CheckpointError(mismatch_message(mismatches))


def _read_finite(files: TensorFiles, key: str, index: Index) -> NDArray[Any]:
    """Return a slice of a tensor.

    Raises:
        NotFiniteError: It holds NaN or infinity.
    """
    stored = files.read_slice(key, index)
    integer, exponent = _EXPONENTS[files.dtypes[key]]
    bits = np.ascontiguousarray(stored).reshape(-1).view(integer)
    for start in range(0, len(bits), _VALUES_AT_ONCE):
        if ((bits[start : start + _VALUES_AT_ONCE] & exponent) == exponent).any():
            raise NotFiniteError(key)
    return stored


def _rewrite(name: str, rules: RenameRules) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
