"""What is in a checkpoint's files, before anybody knows a network.

Goes in: a folder in diffusers' layout. Comes out: its JSON, its tensors one by one, and its digest.
Reads safetensors only: a pickle runs code.
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
"""Folders with weights that this engine knows; which of them there are, model_index.json says."""
WEIGHTS: Final = ("model", "diffusion_pytorch_model")
"""File names of transformers and of diffusers, without their ending."""

_WEIGHT_FILE: Final = re.compile(
    rf"(?P<name>{'|'.join(WEIGHTS)})(?P<half>\.fp16)?"
    r"(?:-(?P<shard>\d{5})-of-(?P<shards>\d{5}))?(?P<half_of_shard>\.fp16)?\.safetensors"
)


def read_json(path: Path) -> dict[str, Any]:
    """
    Raises:
        CheckpointError: the file is missing or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"the checkpoint has no {path.parent.name}/{path.name}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


class TensorFiles:
    """The safetensors of one network, opened but not read."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            CheckpointError: no safetensors there, one is damaged, or two have the same tensor.
        """
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        """In the format's own words: F16."""
        self._files: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file: Any = safe_open(path, framework="numpy")
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    if key in self._files:
                        raise CheckpointError(f"{path} has {key}, as another file there does")
                    tensor = file.get_slice(key)
                    self.shapes[key] = tuple(tensor.get_shape())
                    self.dtypes[key] = tensor.get_dtype()
                    self._files[key] = file
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} is truncated or damaged ({error}); download it again"
                ) from error

    def part(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Part of a tensor, in the file's own dtype; nothing else of it is read."""
        tensor: NDArray[Any] = self._files[key].get_slice(key)[index]
        return tensor


def weight_files(folder: Path) -> Sequence[Path]:
    """The safetensors of a network: one file, or all its shards; fp16 variants if nothing else.

    Raises:
        CheckpointError: there are none, or not all.
    """
    kinds: dict[tuple[bool, str, str], list[Path]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if match := _WEIGHT_FILE.fullmatch(path.name):
            half = bool(match["half"] or match["half_of_shard"])
            kinds.setdefault((half, match["shards"] or "", match["name"]), []).append(path)
    if not kinds:
        raise CheckpointError(_without_weights(folder))
    (_, shards, _), files = min(kinds.items())
    if len(files) != int(shards or 1):
        raise CheckpointError(
            f"{folder} has {len(files)} of {int(shards)} shards: "
            f"{', '.join(path.name for path in files)}; download it again"
        )
    return files


def _without_weights(folder: Path) -> str:
    pickles = sorted(
        path.name for ending in ("bin", "ckpt", "pt") for path in folder.glob(f"*.{ending}")
    )
    if pickles:
        return (
            f"{folder} has its weights as a pickle only ({', '.join(pickles)}), which could run "
            "code; save the model again with diffusers and safe_serialization=True"
        )
    return f"{folder} has no weights: {' or '.join(WEIGHTS)}.safetensors"


def networks_of(index: Mapping[str, Any]) -> list[str]:
    """Folders with weights, by model_index.json: a part that is not there is null there."""
    return [name for name in NETWORKS if (index.get(name) or [None])[0]]


def digest(folder: Path) -> str:
    """`sha256:…` over the names and contents of every file that decides a picture."""
    index = folder / "model_index.json"
    networks = networks_of(read_json(index))
    files = [path for network in networks for path in weight_files(folder / network)]
    files += [folder / network / "config.json" for network in networks]
    files += [index, folder / "scheduler" / "scheduler_config.json"]
    for others in ("tokenizer", "tokenizer_2", "feature_extractor"):
        files += [path for path in (folder / others).glob("*") if path.is_file()]
    total = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def config_digest(folder: Path) -> str:
    """Of the configs alone: which networks these are, whatever their weights."""
    total = hashlib.sha256()
    for path in sorted([folder / "model_index.json", *folder.glob("*/*config.json")]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return f"sha256:{total.hexdigest()}"
