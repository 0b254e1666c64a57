"""Where a model lies: in the package, in a folder, or on the Hugging Face Hub.

Goes in: the model's name. Comes out: a folder in diffusers' layout. From the Hub it takes the files
this engine reads and no others: not the pickles, not the same weights a second time.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import imagefleet.worker
from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.files import WEIGHTS, networks_of, read_json, weight_files

BUNDLED: Final = ("shapes",)

_DESCRIPTIONS: Final = (
    "model_index.json",
    "imagefleet.json",
    "scheduler/scheduler_config.json",
    "feature_extractor/preprocessor_config.json",
    "tokenizer/*",
    "tokenizer_2/*",
)
_HALF: Final = ".fp16"


def find_checkpoint(model: str) -> Path:
    """The folder of a model; downloads it if it is a Hub id.

    Raises:
        CheckpointError: no such folder, no such repository, or the Hub cannot be reached.
    """
    if model in BUNDLED:
        folder = Path(imagefleet.worker.__file__).parent / "bundled" / model
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


def announced_name(model: str, folder: Path) -> str:
    """What producers call this model: `shapes`, the Hub id, or the folder's own name."""
    if model in BUNDLED:
        return model
    is_folder = Path(model).expanduser().resolve() == folder.resolve()
    return folder.resolve().name if is_folder else model


def _download(repository: str) -> Path:
    folder = _snapshot(repository, _DESCRIPTIONS)
    if not (folder / "model_index.json").is_file():
        return folder
    networks = networks_of(read_json(folder / "model_index.json"))
    _snapshot(repository, _weights_of(networks, half=""))
    if halved := [network for network in networks if not _has_weights(folder / network)]:
        _snapshot(repository, _weights_of(halved, half=_HALF))
    return folder


def _weights_of(networks: Sequence[str], half: str) -> list[str]:
    """Patterns of the networks' files; of older and newer spellings."""
    names = [
        spelling
        for name in WEIGHTS
        for spelling in (
            f"{name}{half}.safetensors",
            f"{name}{half}-?????-of-?????.safetensors",
            f"{name}-?????-of-?????{half}.safetensors",
        )
    ]
    return [f"{network}/{name}" for network in networks for name in ("config.json", *names)]


def _has_weights(network: Path) -> bool:
    try:
        return bool(weight_files(network))
    except CheckpointError:
        return False


def _snapshot(repository: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # any of httpx's, the Hub's own and the file system's
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise CheckpointError(
            f"model {repository!r} is neither a folder nor can it be had from the Hub "
            f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN"
        ) from error
