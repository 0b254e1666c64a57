"""Read the files of a checkpoint.

The input is a folder in diffusers' layout, the output its JSON, slices of its tensors and its
digest. This module knows no networks. It reads safetensors only, because a pickle can run code.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from imagefleet.shared.errors import CheckpointError

NETWORKS: Final = ("text_encoder", "text_encoder_2", "unet", "vae", "safety_checker")
"""Folders of networks that this engine knows. model_index.json lists those of a checkpoint."""
WEIGHTS: Final = ("model", "diffusion_pytorch_model")
"""Names of the weight files of transformers and of diffusers, without suffix."""

_WEIGHT_FILE: Final = re.compile(
    rf"(?P<name>{'|'.join(WEIGHTS)})(?P<half>\.fp16)?"
    r"(?:-(?P<shard>\d{5})-of-(?P<shards>\d{5}))?(?P<half_of_shard>\.fp16)?\.safetensors"
)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: The file is missing or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; download the model again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({error}); download it again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return content


class TensorFiles:
    """The open safetensors files of one network. Tensors are read only on demand."""

    def __init__(self, folder: Path) -> None:
        """Open the weight files in `folder`.

        Raises:
            CheckpointError: There are no safetensors, one is damaged, or two files hold the same
                tensor.
        """
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        """Dtypes as safetensors spells them, such as F16."""
        self._files: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file: Any = safe_open(path, framework="numpy")
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    if key in self._files:
                        raise CheckpointError(
                            f"{path} holds {key}, which another file of this folder also holds; "
                            "remove the file that is not part of the model"
                        )
                    tensor = file.get_slice(key)
                    self.shapes[key] = tuple(tensor.get_shape())
                    self.dtypes[key] = tensor.get_dtype()
                    self._files[key] = file
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} is truncated or damaged ({error}); download it again"
                ) from error

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a tensor in the file's dtype. Only this slice is read."""
        tensor: NDArray[Any] = self._files[key].get_slice(key)[index]
        return tensor


def weight_files(folder: Path) -> Sequence[Path]:
    """Return the safetensors files of a network: one file, or all its shards.

    The fp16 variant is taken only if there is no other.

    Raises:
        CheckpointError: There is no weight file, or a shard is missing.
    """
    kinds: dict[tuple[bool, str, str], list[Path]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if match := _WEIGHT_FILE.fullmatch(path.name):
            half = bool(match["half"] or match["half_of_shard"])
            kinds.setdefault((half, match["shards"] or "", match["name"]), []).append(path)
    if not kinds:
        raise CheckpointError(_no_weights_message(folder))
    (_, shards, _), files = min(kinds.items())
    if len(files) != int(shards or 1):
        raise CheckpointError(
            f"{folder} has {len(files)} of {int(shards)} shards: "
            f"{', '.join(path.name for path in files)}; download it again"
        )
    return files


def _no_weights_message(folder: Path) -> str:
    pickles = sorted(
        path.name for ending in ("bin", "ckpt", "pt") for path in folder.glob(f"*.{ending}")
    )
    if pickles:
        return (
            f"{folder} holds weights as a pickle only ({', '.join(pickles)}), which could run "
            "code; save the model again with diffusers and safe_serialization=True"
        )
    return f"{folder} holds no weights; it needs {' or '.join(WEIGHTS)}.safetensors"


def network_folders(index: Mapping[str, Any]) -> list[str]:
    """Return the folders of networks that model_index.json lists. Absent parts are null in it."""
    return [name for name in NETWORKS if (index.get(name) or [None])[0]]


def digest(folder: Path) -> str:
    """Return `sha256:…` over names and contents of every file that influences an image."""
    index = folder / "model_index.json"
    networks = network_folders(read_json(index))
    files = [path for network in networks for path in weight_files(folder / network)]
    files += [folder / network / "config.json" for network in networks]
    files += [index, folder / "scheduler" / "scheduler_config.json"]
    for part in ("tokenizer", "tokenizer_2", "feature_extractor"):
        files += [path for path in (folder / part).glob("*") if path.is_file()]
    total = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def config_digest(folder: Path) -> str:
    """Return `sha256:…` over the configs only: it names the networks, not their weights."""
    total = hashlib.sha256()
    for path in sorted([folder / "model_index.json", *folder.glob("*/*config.json")]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return f"sha256:{total.hexdigest()}"
