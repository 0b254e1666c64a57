"""Read textual inversions (Gal et al. 2022): vectors that a prompt names by a token of their own.

Input: files in the formats of diffusers and of AUTOMATIC1111's web UI. Output: the vectors of each
text encoder, and its weights with these vectors among the embeddings of its tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.text.printable import printable
from imagefleet.worker.engine.checkpoint.checkpoint_files import sha256_of_file
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.options.textual_inversion_options import (
    LoadedInversion,
    TextualInversionOption,
)
from imagefleet.worker.engine.tokenizers.clip import ClipTokenizer
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer

Floats = NDArray[np.float32]
VectorsById = Mapping[int, Floats]
"""It has the vectors of one text encoder, `[hidden_size]` each, by the ids of their tokens."""

_KEYS: Final = {"clip_l": "text_encoder", "clip_g": "text_encoder_2"}
"""It gives the text encoder for each key in files for SDXL."""
_EMBEDDING: Final = "embeddings.token_embedding.weight"
_DTYPES: Final = ("F32", "F16", "BF16")
_MAX_KEY: Final = 200
"""An error shows at most this many characters of a key."""


@dataclass(frozen=True, kw_only=True)
class TextualInversion:
    """It has the content of one file."""

    loaded: LoadedInversion
    vectors: Mapping[str, Floats]
    """They are `[vectors, hidden_size]`, by text encoder."""


def read_textual_inversions(
    options: Sequence[TextualInversionOption], configs: Configs
) -> tuple[TextualInversion, ...]:
    """Read files, and match them with the text encoders of a model.

    Raises:
        CheckpointError: A file is missing or damaged, is no textual inversion, or is one for
            another model.
    """
    return tuple(_read(option, configs) for option in options)


def add_textual_inversions(
    inversions: Sequence[TextualInversion], tokenizer: PromptTokenizer, configs: Configs
) -> dict[str, dict[int, Floats]]:
    """Add the tokens of textual inversions to a tokenizer.

    Returns:
        By text encoder: the vectors, by the ids of their tokens.

    Raises:
        CheckpointError: a vocabulary has such a token already.
    """
    names = configs.pipeline.text_encoders
    vectors: dict[str, dict[int, Floats]] = {name: {} for name in names}
    tokenizers = [each for each in tokenizer.tokenizers if isinstance(each, ClipTokenizer)]
    for inversion in inversions:
        for name, each in zip(names, tokenizers, strict=True):
            rows = inversion.vectors[name]
            ids = each.add_vectors(inversion.loaded.name, len(rows))
            vectors[name] |= zip(ids, rows, strict=True)
    return vectors


def _read(option: TextualInversionOption, configs: Configs) -> TextualInversion:
    path = Path(option.path).expanduser()
    if path.suffix != ".safetensors" or not path.is_file():
        raise CheckpointError(
            f"textual inversion {option.name}: {path} is not a file that ends in .safetensors; "
            "convert a .pt or .bin file, which is a pickle, on a machine where that is acceptable"
        )
    file = TensorFiles([path])
    vectors = {}
    keys = _keys(path, file, configs)
    for encoder, config in zip(configs.pipeline.text_encoders, configs.text_encoders, strict=True):
        vectors[encoder] = _vectors(path, file, keys[encoder], encoder, config.hidden_size)
    digest = f"sha256:{sha256_of_file(path)}"
    return TextualInversion(
        loaded=LoadedInversion(name=option.name, digest=digest), vectors=vectors
    )


def _keys(path: Path, file: TensorFiles, configs: Configs) -> Mapping[str, str]:
    """Return by text encoder the key of its vectors. A single key may have any name."""
    found, encoders = sorted(file.shapes), configs.pipeline.text_encoders
    if len(encoders) == 1 and len(found) == 1:
        return {encoders[0]: found[0]}
    if len(encoders) > 1 and found == sorted(_KEYS):
        return {encoder: key for key, encoder in _KEYS.items()}
    needed = " and ".join(_KEYS) if len(encoders) > 1 else "one tensor"
    shown = ", ".join(printable(each, _MAX_KEY) for each in found[:5]) or "nothing"
    raise CheckpointError(
        f"{path} holds {shown}, but a textual inversion for this model holds {needed}; take one "
        "that was trained for this model"
    )


def _vectors(path: Path, file: TensorFiles, key: str, encoder: str, width: int) -> Floats:
    shape, dtype = file.shapes[key], file.dtypes[key]
    shown = printable(key, _MAX_KEY)
    if not 1 <= len(shape) <= 2 or 0 in shape or dtype not in _DTYPES:
        raise CheckpointError(
            f"{path}: {shown} is {dtype} {list(shape)}; a textual inversion holds one or several "
            f"vectors of {' or '.join(_DTYPES)}"
        )
    if shape[-1] != width:
        raise CheckpointError(
            f"{path}: {shown} has vectors of {shape[-1]} numbers, but {encoder} of this model has "
            f"hidden_size={width}; take a textual inversion that was trained for this model"
        )
    tensor = np.asarray(file.read_slice(key, tuple(slice(None) for _ in shape)), np.float32)
    if not np.isfinite(tensor).all():
        raise CheckpointError(f"{path}: {shown} holds NaN or infinity; download it again")
    return tensor.reshape(-1, width)


class ExtendedEmbedding(TensorFiles):
    """It has the weights of a text encoder with further or other vectors of tokens."""

    def __init__(self, files: TensorFiles, vectors: VectorsById) -> None:
        """Put `vectors` into the embedding in `files`, at their ids."""
        self._base, self._vectors = files, vectors
        self._keys = [key for key in files.shapes if key.removeprefix("text_model.") == _EMBEDDING]
        self.is_sharded = files.is_sharded
        self.shapes = {**files.shapes, **{key: self._shape(key) for key in self._keys}}
        self.dtypes = {**files.dtypes, **dict.fromkeys(self._keys, "F32")}

    def _shape(self, key: str) -> tuple[int, ...]:
        rows, *rest = self._base.shapes[key]
        return (max(rows, *(number + 1 for number in self._vectors)), *rest)

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of the embedding in float32, or of another tensor in the file's dtype."""
        if key not in self._keys:
            return self._base.read_slice(key, index)
        rows, columns = index or (slice(None), slice(None))
        start, stop, _ = rows.indices(self.shapes[key][0])
        end = min(stop, self._base.shapes[key][0])
        width = len(range(*columns.indices(self.shapes[key][1])))
        taken = np.zeros((stop - start, width), np.float32)
        if start < end:
            taken[: end - start] = self._base.read_slice(key, (slice(start, end), columns))
        for number, vector in self._vectors.items():
            if start <= number < stop:
                taken[number - start] = vector[columns]
        return taken
