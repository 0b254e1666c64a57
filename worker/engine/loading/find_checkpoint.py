"""Find the checkpoint of a model: in the package, in a folder, or on the Hugging Face Hub.

Input: the model's name. Output: a folder in diffusers format. From the Hub it downloads only the
files that this engine reads: no pickles, and no second copy of the same weights.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from imagefleet.shared.errors import CheckpointError, CheckpointUnavailable
from imagefleet.worker.engine.checkpoint.checkpoint_files import (
    FILES_BESIDE,
    FULL,
    HALF,
    INDEX,
    CheckpointFiles,
    has_full_weights,
    has_part,
    read_json,
    shard_names,
    weight_names,
    without_parts,
)
from imagefleet.worker.engine.checkpoint.model_license import CARD
from imagefleet.worker.engine.checkpoint.single_file import (
    SingleFile,
    config_folder,
    is_single_file,
)
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.family_protocol import Family
from imagefleet.worker.engine.families.registry import (
    FAMILIES,
    NETWORKS,
    base_of,
    family_of,
)
from imagefleet.worker.engine.loading.bundled_models import BUNDLED, bundled_folder

log = logging.getLogger(__name__)

_HUB_NAME: Final = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-][\w./-]*))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TEMPORARY_STATUSES: Final = (408, 429)
"""After these statuses of the Hub, a later request may succeed, as after those from 500 on."""

_METADATA_PATTERNS: Final = (
    INDEX,
    CARD,
    "imagefleet.json",
    "scheduler/scheduler_config.json",
    "feature_extractor/preprocessor_config.json",
    "tokenizer/*",
    "tokenizer_2/*",
    "tokenizer_3/*",
    *(f"{network}/config.json" for network in NETWORKS),
    *(f"*/{name}" for name in FILES_BESIDE),
    *(f"{network}/*.safetensors.index*.json" for network in NETWORKS),
)


def find_checkpoint(model: str, *, with_weights: bool = True, left_out: Sequence[str] = ()) -> Path:
    """Return the folder of a model, or its file. Download the model if it is a Hub id.

    Without weights, only its configs and tokenizers are downloaded. The weights of parts that are
    left out are not downloaded.

    A Hub id may end in `@` and a revision. A warning says so if it does not name a commit, since
    the files could then be others at the next start.

    Raises:
        CheckpointError: The folder or repository does not exist, or the Hub refuses it.
        CheckpointUnavailable: The Hub is unreachable, or fails for now.
    """
    if is_single_file(file := Path(model).expanduser()):
        return file
    if model in BUNDLED:
        folder = bundled_folder(model)
    elif (local := Path(model).expanduser()).is_dir() or not (hub := _HUB_NAME.fullmatch(model)):
        folder = local
    else:
        folder = _download(hub["id"], hub["revision"], left_out, with_weights=with_weights)
        if not _COMMIT.fullmatch(hub["revision"] or ""):
            log.warning(
                "model %s names no commit, so the Hub may send other files at the next start; "
                "set IMAGEFLEET_MODEL=%s@%s",
                *(model, hub["id"], folder.name),
            )
    if not (folder / INDEX).is_file():
        fault = "has no model_index.json" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"model {model!r}: {folder} {fault}; give `shapes`, `shapes-dit`, a folder in "
            "diffusers format, a file in the original format that ends in .safetensors, or a Hub "
            "id like CompVis/stable-diffusion-v1-4, perhaps with @revision"
        )
    return folder


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """It says how a model is called."""

    name: str
    """It is the name for producers: `shapes`, the Hub id without its revision, or the folder's
    name."""
    source: str | None
    """It is the Hub id with the commit that was loaded, `org/name@commit`. None means that the
    model is not from the Hub, and so has no commit."""

    @classmethod
    def of(cls, model: str, folder: Path) -> Self:
        """Return the identity of the model in `folder`, which `find_checkpoint(model)` returned."""
        if model in BUNDLED:
            return cls(name=model, source=None)
        if is_single_file(folder):
            return cls(name=folder.stem, source=None)
        if Path(model).expanduser().resolve() == folder.resolve():
            return cls(name=folder.resolve().name, source=None)
        name = model.partition("@")[0]
        return cls(name=name, source=f"{name}@{folder.name}")  # the Hub names folders by commit


def open_checkpoint(path: Path, left_out: Sequence[str] = ()) -> CheckpointFiles:
    """Return the files of the checkpoint that `find_checkpoint` found.

    If it is one file, its configs and tokenizers are downloaded unless they lie beside it.

    Args:
        path: The folder or the file.
        left_out: These parts are not read.

    Raises:
        CheckpointError: The file is of an unknown model, or the Hub is unreachable.
    """
    if not is_single_file(path):
        return CheckpointFiles(path, left_out)
    if folder := config_folder(path):
        return _single_file(path, folder, family_of(CheckpointFiles(folder)), left_out)
    found = base_of(TensorFiles([path]).shapes)
    if found is None:
        known = ", or of ".join(family.name for family in FAMILIES)
        raise CheckpointError(
            f"{path} does not have the keys of {known} in the original format; give a folder in "
            "diffusers format, or another file"
        )
    family, base = found
    return _single_file(path, _download_configs(path, base), family, left_out)


def _single_file(path: Path, configs: Path, family: Family, left_out: Sequence[str]) -> SingleFile:
    if family.original_format is None:
        raise CheckpointError(
            f"{path} is one file, but {family.name} is read from folders in diffusers format only; "
            "give such a folder"
        )
    return SingleFile(path, configs, family.original_format, left_out)


def _download_configs(file: Path, base: str) -> Path:
    try:
        return _download(base, None, with_weights=False)
    except CheckpointError as error:
        raise type(error)(
            f"{file} needs the configs and tokenizers of {base}: {error}; or put them in "
            f"{file.with_suffix('')}, in diffusers format without weights"
        ) from error


def _download(
    repository: str, revision: str | None, left_out: Sequence[str] = (), *, with_weights: bool
) -> Path:
    folder = _snapshot(repository, revision, _METADATA_PATTERNS)
    if not with_weights or not (folder / INDEX).is_file():
        return folder
    networks = network_folders(without_parts(read_json(folder / INDEX), left_out))
    for variant in (FULL, HALF):
        patterns = [name for each in networks for name in _weight_patterns(folder, each, variant)]
        _snapshot(repository, folder.name, patterns)  # the commit, so that no file is newer
        if all(has_full_weights(folder / network) for network in networks):
            break
    return folder


def network_folders(index: Mapping[str, Any]) -> list[str]:
    """Return the folders of networks that model_index.json lists."""
    return [name for name in NETWORKS if has_part(index, name)]


def _weight_patterns(folder: Path, network: str, variant: str) -> list[str]:
    """Return the names of the weight files that a network may have.

    The indexes of its shards are in `folder` already, if it has any.
    """
    names: list[str] = []
    for name in weight_names(network, variant):
        if not name.endswith(".json"):
            names.append(name)
        elif (index := folder / network / name).is_file():
            names += shard_names(index)
            break
    return [f"{network}/{name}" for name in names]


def _snapshot(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=list(patterns))
        return Path(folder)
    except Exception as error:  # httpx, huggingface_hub and the file system raise their own
        name = repository if revision is None else f"{repository}@{revision}"
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        kind = CheckpointUnavailable if _is_temporary(error) else CheckpointError
        raise kind(
            f"model {name!r} is not a folder and could not be downloaded from the Hub "
            f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN"
        ) from error


def _is_temporary(error: Exception) -> bool:
    """Return whether a download may succeed later: the Hub did not answer, or is overloaded."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for each in _chain(error):
        if isinstance(each, HfHubHTTPError):
            status = each.response.status_code
            return status >= 500 or status in _TEMPORARY_STATUSES
        if isinstance(each, OfflineModeIsEnabled):
            return False
        if isinstance(each, httpx2.TransportError | ConnectionError | TimeoutError):
            return True
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes. The Hub's library gives the error that it met as a cause."""
    while error is not None:
        yield error
        error = error.__cause__
