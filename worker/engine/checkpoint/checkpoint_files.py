"""Find and read the files of one checkpoint, as diffusers and transformers choose them.

Input: a folder in diffusers format. Output: its JSON, its weight files and the digest of the files
that were read. This module depends on the names of files, but on no field of a config.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles

INDEX: Final = "model_index.json"
FILES_BESIDE: Final = {
    "adapter_config.json": "transformers would add this adapter of PEFT, which is not done here",
    "processor_config.json": "transformers would read it before preprocessor_config.json",
}
"""With one of these files beside a config, transformers would make another part. Each has the
reason."""
_OF_TRANSFORMERS: Final = ("text_encoder", "safety_checker")
"""transformers reads the weights of folders whose names begin with these; diffusers reads the
others."""
FULL: Final = ""
HALF: Final = ".fp16"
"""The suffix of weights in half precision, which are read only if some network has no others."""


_CONVERT: Final = (
    'python -c "from diffusers import DiffusionPipeline as P; '
    "P.from_pretrained('MODEL').save_pretrained('FOLDER')\""
)
"""The command that writes the weights of a model as safetensors."""


class CheckpointFiles:
    """It has the files of one checkpoint, and remembers which were read."""

    def __init__(self, folder: Path, left_out: Sequence[str] = ()) -> None:
        """
        Args:
            folder: It is in diffusers format.
            left_out: These parts are not read: model_index.json says that there are none.
        """
        self.folder = folder
        self._left_out = tuple(left_out)
        self._read: set[Path] = set()

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file, such as `vae/config.json`.

        Raises:
            CheckpointError: The file is missing or holds no JSON object.
        """
        self._read.add(self.folder / name)
        content = read_json(self.folder / name)
        return without_parts(content, self._left_out) if name == INDEX else content

    def read_optional_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file. None if there is no such file."""
        return self.read_json(name) if (self.folder / name).is_file() else None

    def use(self, name: str) -> Path:
        """Return the path of a file that the caller reads itself.

        Raises:
            CheckpointError: The file is missing.
        """
        path = self.folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; download the model again")
        self._read.add(path)
        return path

    def open_weights(
        self, networks: Sequence[str], keys: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, TensorFiles]:
        """Open the weight files of these networks, by network.

        If every network has weights in full precision, these are read. Otherwise the files ending
        in `.fp16` are read, of every network that has them, as with diffusers' `variant="fp16"`.

        Args:
            networks: Their folders.
            keys: By network: the keys that it has. Only checkpoints in one file need them.

        Raises:
            CheckpointError: A network has no weights, a shard is missing, or a file is damaged.
        """
        folders = [self.folder / name for name in networks]
        all_full = all(has_full_weights(folder) for folder in folders)
        opened = {}
        for folder in folders:
            files = weight_files(folder, FULL if all_full else HALF)
            self._read.update(files)
            tensors = [path for path in files if path.suffix != ".json"]
            opened[folder.name] = TensorFiles(tensors, is_sharded=tensors != files)
        return opened

    def digest(self) -> str:
        """Return `sha256:…` over names and contents of exactly the files that were read."""
        total = hashlib.sha256()
        for path in sorted(self._read):
            content = sha256_of_file(path)
            total.update(f"{content}  {path.relative_to(self.folder).as_posix()}\n".encode())
        return f"sha256:{total.hexdigest()}"


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of the content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: The file is missing or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; download the model again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({error}); download it again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; download it again")
    return content


def weight_files(folder: Path, variant: str) -> list[Path]:
    """Return the weight files of a network: one file, or an index and its shards.

    diffusers prefers the shards to a whole file, and transformers the whole file to shards. Files
    with any other name are left over from something else and are not read.

    Args:
        folder: The network's folder.
        variant: `FULL`, or `HALF` for the files ending in `.fp16` if there are any.

    Raises:
        CheckpointError: There is no weight file, or a shard is missing.
    """
    first = _weight_index(folder, variant) or _weight_index(folder, FULL)
    if first is None:
        raise CheckpointError(_no_weights_message(folder))
    if first.suffix != ".json":
        return [first]
    return [first, *_shards(first)]


def has_full_weights(folder: Path) -> bool:
    """Return whether the network has weights in full precision, whole or in shards."""
    return _weight_index(folder, FULL) is not None


def has_part(index: Mapping[str, Any], part: str) -> bool:
    """Return whether model_index.json lists this part, even if its entry is malformed.

    The entry is a library and a class. Both are null if the checkpoint does not have the part.
    """
    entry = index.get(part)
    return bool(entry[0] if isinstance(entry, list) and entry else entry)


def without_parts(index: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """Return model_index.json of a checkpoint that does not have these parts."""
    return {**index, **{part: [None, None] for part in parts if part in index}}


def weight_names(network: str, variant: str) -> tuple[str, str]:
    """Return the names under which a network's weights are looked for, the preferred one first.

    One is a whole file, the other the index of its shards.
    """
    stem = _stem(network)
    whole, shards = (
        f"{stem}{variant}.safetensors",
        f"{stem}.safetensors.index{variant}.json",
    )
    return (whole, shards) if network.startswith(_OF_TRANSFORMERS) else (shards, whole)


def shard_names(index: Path) -> list[str]:
    """Return the names of the shards that an index lists.

    Raises:
        CheckpointError: The index lists no files of its own folder.
    """
    listed = read_json(index).get("weight_map")
    names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    outside = [name for name in names if PurePath(name).name != name]
    if not names or outside:
        fault = f"weight_map lists {outside[0]!r}" if outside else "weight_map lists no files"
        raise CheckpointError(
            f"{index}: {fault}; it must list the shards beside it, so download it again"
        )
    return names


def config_digest(folder: Path) -> str:
    """Return `sha256:…` over the configs only: it names the networks, not their weights."""
    total = hashlib.sha256()
    for path in sorted([folder / INDEX, *folder.glob("*/*config.json")]):
        content = sha256_of_file(path)
        total.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _stem(network: str) -> str:
    return "model" if network.startswith(_OF_TRANSFORMERS) else "diffusion_pytorch_model"


def _weight_index(folder: Path, variant: str) -> Path | None:
    """Return the whole weight file or the index of the shards, whichever is read."""
    paths = (folder / name for name in weight_names(folder.name, variant))
    return next((path for path in paths if path.is_file()), None)


def _shards(index: Path) -> list[Path]:
    shards = [index.parent / name for name in shard_names(index)]
    if missing := [path.name for path in shards if not path.is_file()]:
        raise CheckpointError(
            f"{index} lists {counted(len(shards), 'shard')}, of which {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: "
            f"{', '.join(missing[:5])}; download the model again"
        )
    return shards


def _no_weights_message(folder: Path) -> str:
    expected = " or ".join(weight_names(folder.name, FULL))
    pickles = sorted(
        path.name for ending in ("bin", "ckpt", "pt") for path in folder.glob(f"*.{ending}")
    )
    if pickles:
        return (
            f"{folder} holds weights as a pickle only ({', '.join(pickles)}), which could run "
            f"code; where that is acceptable, convert it with diffusers: {_CONVERT}"
        )
    others = sorted(path.name for path in folder.glob("*.safetensors*"))
    found = (
        f"it holds {', '.join(others[:5])}, which is never read here" if others else "it is empty"
    )
    if not folder.is_dir():
        found = "the folder is missing"
    return f"{folder} holds no weights: it needs {expected}, but {found}"
