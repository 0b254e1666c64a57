"""Read LoRA files (Hu et al. 2021) and add them to the weights of a model as it loads.

Input: files in diffusers', PEFT's or kohya's format, with LoRA of linear layers and of convolutions
(LoCon). Output: the factors of each weight. A merged weight is W + scale * alpha / rank * up @
down, in float32. Every key of a file must fit a weight.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.text.printable import printable
from imagefleet.worker.engine.checkpoint.checkpoint_files import sha256_of_file
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames, parse_key, unsupported_kind
from imagefleet.worker.engine.checkpoint.peft_settings import PeftSettings
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.options.lora_options import AppliedLora, LoraOption
from imagefleet.worker.engine.options.textual_inversion_options import LoadedInversion

Floats = NDArray[np.float32]
_LISTED: Final = 5
"""An error lists at most this many keys."""
_MAX_KEY: Final = 200
"""An error shows at most this many characters of a key."""
_DTYPES: Final = ("F64", "F32", "F16", "BF16", "I64", "I32")
"""Dtypes that are read. Trainers may write alpha as a whole number."""
_MAX_VALUE: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class LoraFactors:
    """It has what one file adds to one weight."""

    down: Floats
    """It is `[rank, in, …]`, in torch's layout."""
    up: Floats
    """It is `[out, rank]`."""
    scale: float
    """It is the caller's scale, times alpha / rank."""

    def delta(self, shape: tuple[int, ...], index: tuple[slice, ...]) -> Floats:
        """Return a slice of what is added to a weight of this shape."""
        down = self.down.reshape(len(self.down), *shape[1:])[(slice(None), *index[1:])]
        up = self.up[index[0]]
        added = self.scale * (up @ down.reshape(len(down), -1))
        return np.asarray(added.reshape(len(up), *down.shape[1:]), np.float32)


Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""It has the shape of each weight in torch's layout, by network and key."""
Loras = Mapping[str, Mapping[str, Sequence[LoraFactors]]]
"""It has the factors by network and key."""


class MergedTensors(TensorFiles):
    """It has the weights of a network with LoRA added. Tensors are read only on demand."""

    def __init__(self, files: TensorFiles, factors: Mapping[str, Sequence[LoraFactors]]) -> None:
        """Add `factors`, by the keys in `files`."""
        self.is_sharded = files.is_sharded
        self.shapes = files.shapes
        self.dtypes = {**files.dtypes, **dict.fromkeys(factors, "F32")}
        self._base = files
        self._factors = factors

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a merged tensor in float32, or of another one in the file's dtype."""
        tensor = self._base.read_slice(key, index)
        for each in self._factors.get(key, ()):
            tensor = tensor.astype(np.float32) + each.delta(self.shapes[key], index)
        return tensor


def read_loras(options: Sequence[LoraOption], shapes: Shapes, names: LoraNames) -> Loras:
    """Read files, and match them with the weights of a model.

    Args:
        options: The files and their scales.
        shapes: By network and key: the shape of the weight in torch's layout.
        names: Of the model's layers.

    Raises:
        CheckpointError: A file is missing or damaged, is no plain LoRA, or does not fit the model.
    """
    loras: dict[str, dict[str, list[LoraFactors]]] = {network: {} for network in shapes}
    for option in options:
        path = Path(option.path).expanduser()
        if not path.is_file():
            raise CheckpointError(f"lora {option.name}: {path} is not a file; give a .safetensors")
        for (network, key), factors in _LoraFile(path, shapes, names).factors(option.scale).items():
            loras[network].setdefault(key, []).append(factors)
    return loras


def applied_loras(options: Sequence[LoraOption]) -> tuple[AppliedLora, ...]:
    """Return the digests of files that were read."""
    applied = []
    for option in options:
        digest = f"sha256:{sha256_of_file(Path(option.path).expanduser())}"
        applied.append(AppliedLora(name=option.name, digest=digest, scale=option.scale))
    return tuple(applied)


def digest_with(
    digest: str,
    loras: Sequence[AppliedLora],
    inversions: Sequence[LoadedInversion] = (),
    *,
    int8_weights: bool = False,
) -> str:
    """Return the digest of a checkpoint with these files, and with weights of 8 bits or not.

    Without any of them it is the checkpoint's own.
    """
    if not loras and not inversions and not int8_weights:
        return digest
    parts = [f"{each.digest} {each.scale!r}" for each in loras]
    parts += [f"{each.digest} {each.name}" for each in inversions]
    lines = "\n".join([digest, *parts, *(["int8"] if int8_weights else [])])
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


class _LoraFile:
    """It is one LoRA file, matched with the weights of a model."""

    def __init__(self, path: Path, shapes: Shapes, names: LoraNames) -> None:
        self._path = path
        self._names = names
        self._shapes = shapes
        self._files = TensorFiles([path])
        self._settings = PeftSettings(path, self._files.header)
        self._keys: dict[tuple[str, str], dict[str, str]] = {}
        """By network and weight, it has the key of each part."""
        self._rows: dict[tuple[str, str], tuple[slice, int]] = {}
        """It has the outputs of a layer of the file that are those of a weight, and the number of
        all its outputs."""
        if kind := unsupported_kind(self._files.shapes):
            raise CheckpointError(
                f"{path} is {kind}, which this engine does not merge; merge it into the model with "
                "the program that made it"
            )
        self._match()

    def _match(self) -> None:
        layers = self._layers()
        unknown = []
        for key in sorted(self._files.shapes):
            parsed = parse_key(key)
            places = layers.get(parsed.layer) if parsed else None
            if parsed is None or places is None:
                unknown.append(key)
                continue
            if any(parsed.part in self._keys.get(place, {}) for place in places):
                unknown.append(f"{key} (a second time)")
                continue
            ends = list(accumulate(self._shapes[network][weight][0] for network, weight in places))
            for place, start, end in zip(places, (0, *ends), ends, strict=False):
                self._keys.setdefault(place, {})[parsed.part] = key
                self._rows[place] = slice(start, end), ends[-1]
        if unknown:
            first = ", ".join(printable(each, _MAX_KEY) for each in unknown[:_LISTED])
            fit = "1 key fits" if len(unknown) == 1 else f"{len(unknown)} keys fit"
            raise CheckpointError(
                f"{self._path}: {fit} no weight of this model, the first {first}; take a LoRA that "
                "was trained for this model, in a format that docs/models.md lists"
            )
        if not self._keys:
            raise CheckpointError(f"{self._path} holds no LoRA")
        if mixture := self._names.mixture(self._files.shapes):
            raise CheckpointError(f"{self._path} {mixture}; convert the file to one format")

    def _layers(self) -> dict[str, list[tuple[str, str]]]:
        """Return network and key of each weight that a layer of a file changes, by its name."""
        layers = {}
        for network, weights in self._shapes.items():
            keys = list(weights)
            for name, key in self._names.by_name(network, keys).items():
                layers[name] = [(network, key)]
            for name, fused in self._names.fused(network, keys).items():
                layers[name] = [(network, key) for key in fused]
        return layers

    def factors(self, scale: float) -> dict[tuple[str, str], LoraFactors]:
        """Return the factors by network and weight.

        Raises:
            CheckpointError: A part is missing, or does not have the shape of its weight.
        """
        return {place: self._factors_of(place, parts, scale) for place, parts in self._keys.items()}

    def _factors_of(
        self, place: tuple[str, str], parts: Mapping[str, str], scale: float
    ) -> LoraFactors:
        network, key = place
        shape = self._shapes[network][key]
        if not {"down", "up"} <= parts.keys():
            raise CheckpointError(f"{self._path}: {network} {key} has one of its two factors only")
        down, up = self._read(parts["down"]), self._read(parts["up"])
        rank = down.shape[0] if down.ndim else 0
        if key in self._names.widened and down.ndim == 2 and down.shape[1] < shape[1]:
            down = np.pad(down, ((0, 0), (0, shape[1] - down.shape[1])))
        rows, total = self._rows[place]
        is_whole = up.ndim > 0 and len(up) == total
        if is_whole:
            up = up[rows]
        fits = (
            is_whole
            and up.shape[:2] == (shape[0], rank)
            and up.size == shape[0] * rank
            and down.shape[1:2] == shape[1:2]
            and down.size == rank * np.prod(shape[1:])
        )
        if not fits:
            raise CheckpointError(
                f"{self._path}: {parts['down']} {list(down.shape)} and {parts['up']} "
                f"{list(up.shape)} do not make {network} {key} {list(shape)}; take a LoRA that was "
                "trained for this model"
            )
        if "alpha" in parts:
            alpha = self._read_alpha(parts["alpha"])
        else:
            spellings = self._names.spellings(network, key.removesuffix(".weight"))
            of_settings = self._settings.alpha(network, spellings)
            alpha = rank if of_settings is None else of_settings
        scale = scale * alpha / rank
        if not _largest(down) * _largest(up) * rank * max(1.0, abs(scale)) < _MAX_VALUE:
            raise CheckpointError(
                f"{self._path}: {parts['down']}, {parts['up']} and alpha are so large that they "
                "make infinite weights; download it again"
            )
        return LoraFactors(down, up.reshape(shape[0], rank), scale)

    def _read_alpha(self, key: str) -> float:
        alpha = self._read(key)
        if alpha.size != 1:
            raise CheckpointError(
                f"{self._path}: {key} is {list(alpha.shape)}, but alpha is one number; take a LoRA "
                "that was saved whole"
            )
        return float(alpha.item())

    def _read(self, key: str) -> Floats:
        if (dtype := self._files.dtypes[key]) not in _DTYPES:
            raise CheckpointError(
                f"{self._path}: {key} is {dtype}, which this engine does not read; convert the "
                f"file to {' or '.join(_DTYPES[1:4])}"
            )
        if 0 in self._files.shapes[key]:
            raise CheckpointError(
                f"{self._path}: {key} {list(self._files.shapes[key])} is empty; take a LoRA that "
                "was saved whole"
            )
        whole = tuple(slice(None) for _ in self._files.shapes[key])
        with np.errstate(over="ignore"):  # a value beyond float32 becomes infinity
            tensor = np.asarray(self._files.read_slice(key, whole), np.float32)
        if not np.isfinite(tensor).all():
            raise CheckpointError(f"{self._path}: {key} holds NaN or infinity; download it again")
        return tensor


def _largest(tensor: Floats) -> float:
    """Return the largest absolute value of a tensor, or 1 if all are smaller."""
    return max(1.0, float(np.abs(tensor).max()))
