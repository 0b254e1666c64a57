"""Where a checkpoint lies and what is in its files, before anybody knows a network.

Goes in: the model's name: `shapes` (bundled), a folder in diffusers' layout, or a Hub id. Comes
out: the folder, its JSON, its tensors one by one, and its digest. Reads safetensors only: a pickle
runs code.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

import worker
from shared.errors import CheckpointError

BUNDLED: Final = {"shapes": "shapes", "bundled": "shapes"}
NETWORKS: Final = ("text_encoder", "unet", "vae")

_WEIGHTS: Final = ("model", "diffusion_pytorch_model")
"""File names of transformers and of diffusers, without their ending."""
_HUB_FILES: Final = (
    "model_index.json",
    "imagefleet.json",
    "scheduler/scheduler_config.json",
    "tokenizer/*",
    *(f"{network}/config.json" for network in NETWORKS),
    *(f"{network}/{name}.safetensors" for network in NETWORKS for name in _WEIGHTS),
    *(f"{network}/{name}-*-of-*.safetensors" for network in NETWORKS for name in _WEIGHTS),
)


def find_checkpoint(model: str) -> Path:
    """The folder of a model; downloads it if it is a Hub id.

    Raises:
        CheckpointError: no such folder, no such repository, or the Hub cannot be reached.
    """
    if model in BUNDLED:
        folder = Path(worker.__file__).parent / "bundled" / BUNDLED[model]
    elif (local := Path(model).expanduser()).is_dir() or not re.fullmatch(
        r"[\w.-]+/[\w.-]+", model
    ):
        folder = local
    else:
        folder = _download(model)
    if not (folder / "model_index.json").is_file():
        what = "has no model_index.json" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"model {model!r}: {folder} {what}; give `shapes`, a folder in diffusers' layout, "
            "or a Hub id like CompVis/stable-diffusion-v1-4"
        )
    return folder


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # any of httpx's, the Hub's own and the file system's
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise CheckpointError(
            f"model {repository!r} is neither a folder nor can it be had from the Hub "
            f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN"
        ) from error


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
            CheckpointError: no safetensors there, or one is damaged.
        """
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file: Any = safe_open(path, framework="numpy")
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    self.shapes[key] = tuple(file.get_slice(key).get_shape())
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
    """The safetensors of a network: one file, or its shards; fp16 variants if nothing else.

    Raises:
        CheckpointError: there are none.
    """
    for name in _WEIGHTS:
        for pattern in (
            f"{name}.safetensors",
            f"{name}-*-of-*.safetensors",
            f"{name}.fp16.safetensors",
        ):
            if found := sorted(folder.glob(pattern)):
                return found
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights as a pickle only ({', '.join(pickles)}), which could run "
            "code; save the model again with diffusers and safe_serialization=True"
        )
    raise CheckpointError(f"{folder} has no weights: {' or '.join(_WEIGHTS)}.safetensors")


def digest(folder: Path) -> str:
    """`sha256:…` over the names and contents of every file that decides a picture."""
    files = [path for network in NETWORKS for path in weight_files(folder / network)]
    files += [folder / network / "config.json" for network in NETWORKS]
    files += [folder / "scheduler" / "scheduler_config.json"]
    files += [path for path in (folder / "tokenizer").glob("*") if path.is_file()]
    total = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def announced_name(model: str, folder: Path) -> str:
    """What producers call this model: `shapes`, the Hub id, or the folder's own name."""
    if model in BUNDLED:
        return BUNDLED[model]
    is_folder = Path(model).expanduser().resolve() == folder.resolve()
    return folder.resolve().name if is_folder else model
