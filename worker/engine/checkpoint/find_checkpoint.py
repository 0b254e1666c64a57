"""Find the checkpoint of a model: in the package, in a folder, or on the Hugging Face Hub.

The input is the model's name, the output a folder in diffusers' layout. From the Hub it downloads
only the files that this engine reads: no pickles, and no second copy of the same weights.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import imagefleet.worker
from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.tensor_files import (
    WEIGHTS,
    network_folders,
    read_json,
    weight_files,
)

log = logging.getLogger(__name__)

BUNDLED: Final = ("shapes",)

_HUB_NAME: Final = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-][\w./-]*))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")

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

    A Hub id may end in `@` and a revision. A warning says so if it does not name a commit, since
    the files could then be others at the next start.

    Raises:
        CheckpointError: The folder or repository does not exist, or the Hub is unreachable.
    """
    if model in BUNDLED:
        folder = Path(imagefleet.worker.__file__).parent / "bundled" / model
    elif (local := Path(model).expanduser()).is_dir() or not (hub := _HUB_NAME.fullmatch(model)):
        folder = local
    else:
        folder = _download(hub["id"], hub["revision"])
        if not _COMMIT.fullmatch(hub["revision"] or ""):
            log.warning(
                "model %s names no commit, so the Hub may send other files at the next start; "
                "set IMAGEFLEET_MODEL=%s@%s",
                *(model, hub["id"], folder.name),
            )
    if not (folder / "model_index.json").is_file():
        fault = "has no model_index.json" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"model {model!r}: {folder} {fault}; give `shapes`, a folder in diffusers' layout, "
            "or a Hub id like CompVis/stable-diffusion-v1-4, perhaps with @revision"
        )
    return folder


def announced_name(model: str, folder: Path) -> str:
    """Return the model's name for producers: `shapes`, the Hub id without its revision, or the
    folder's name."""
    if model in BUNDLED:
        return model
    is_folder = Path(model).expanduser().resolve() == folder.resolve()
    return folder.resolve().name if is_folder else model.partition("@")[0]


def _download(repository: str, revision: str | None) -> Path:
    folder = _snapshot(repository, revision, _METADATA_PATTERNS)
    if not (folder / "model_index.json").is_file():
        return folder
    networks = network_folders(read_json(folder / "model_index.json"))
    _snapshot(repository, revision, _weight_patterns(networks, variant=""))
    if incomplete := [network for network in networks if not _has_weights(folder / network)]:
        _snapshot(repository, revision, _weight_patterns(incomplete, variant=_FP16))
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


def _snapshot(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=list(patterns))
        return Path(folder)
    except Exception as error:  # httpx, huggingface_hub and the file system raise their own
        name = repository if revision is None else f"{repository}@{revision}"
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise CheckpointError(
            f"model {name!r} is not a folder and could not be downloaded from the Hub "
            f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN"
        ) from error
