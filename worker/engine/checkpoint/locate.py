"""Find the checkpoint of a model: in the package, in a folder, or on the Hugging Face Hub.

The input is the model's name, the output a folder in diffusers' layout. From the Hub it downloads
only the files that this engine reads: no pickles, and no second copy of the same weights.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import imagefleet.worker
from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.files import (
    WEIGHTS,
    network_folders,
    read_json,
    weight_files,
)

BUNDLED: Final = ("shapes",)

_METADATA_PATTERNS: Final = (
    "model_index.json",
    "imagefleet.json",
    "scheduler/scheduler_config.json",
    "feature_extractor/preprocessor_config.json",
    "tokenizer/*",
    "tokenizer_2/*",
)
_FP16: Final = ".fp16"


def find_checkpoint(model: str) -> Path:
    """Return the folder of a model. Download the model if it is a Hub id.

    Raises:
        CheckpointError: The folder or repository does not exist, or the Hub is unreachable.
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
        fault = "has no model_index.json" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"model {model!r}: {folder} {fault}; give `shapes`, a folder in diffusers' layout, "
            "or a Hub id like CompVis/stable-diffusion-v1-4"
        )
    return folder


def announced_name(model: str, folder: Path) -> str:
    """Return the model's name for producers: `shapes`, the Hub id, or the folder's name."""
    if model in BUNDLED:
        return model
    is_folder = Path(model).expanduser().resolve() == folder.resolve()
    return folder.resolve().name if is_folder else model


def _download(repository: str) -> Path:
    folder = _snapshot(repository, _METADATA_PATTERNS)
    if not (folder / "model_index.json").is_file():
        return folder
    networks = network_folders(read_json(folder / "model_index.json"))
    _snapshot(repository, _weight_patterns(networks, variant=""))
    if incomplete := [network for network in networks if not _has_weights(folder / network)]:
        _snapshot(repository, _weight_patterns(incomplete, variant=_FP16))
    return folder


def _weight_patterns(networks: Sequence[str], variant: str) -> list[str]:
    """Return patterns of config and weight files, with either place of the variant's suffix."""
    names = [
        pattern
        for name in WEIGHTS
        for pattern in (
            f"{name}{variant}.safetensors",
            f"{name}{variant}-?????-of-?????.safetensors",
            f"{name}-?????-of-?????{variant}.safetensors",
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
    except Exception as error:  # httpx, huggingface_hub and the file system raise their own
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise CheckpointError(
            f"model {repository!r} is not a folder and could not be downloaded from the Hub "
            f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN"
        ) from error
