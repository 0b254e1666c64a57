"""Find the files of a dataset that `save_to_disk` of `datasets` has written.

Input: a folder. Output: its Arrow files, in the order of the rows. Other files in it, as the caches
of `map`, are none of the dataset.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from imagefleet.shared.errors import InvalidRequest

STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"


def files_of_saved(folder: Path) -> list[Path] | None:
    """Return the files of the dataset in `folder`; None if the folder is no saved dataset.

    Raises:
        InvalidRequest: it holds several splits, or cannot be read.
    """
    if (folder / SPLITS).is_file():
        name = only_split(str(folder), (folder / SPLITS).read_bytes())
        return files_of_saved(folder / name)
    if not (folder / STATE).is_file() or not (folder / "dataset_info.json").is_file():
        return None
    listed = _parsed(str(folder), (folder / STATE).read_bytes()).get("_data_files")
    try:
        names = [str(each["filename"]) for each in listed or ()]
    except (TypeError, KeyError):
        raise _damaged(str(folder)) from None
    if any(Path(name).name != name for name in names):
        raise _damaged(str(folder))
    return [folder / name for name in names]


def only_split(place: str, content: bytes) -> str:
    """Return the split of a saved dataset that has only one.

    Args:
        content: of its `dataset_dict.json`.

    Raises:
        InvalidRequest: it has several, or none.
    """
    splits = _parsed(place, content).get("splits")
    if not isinstance(splits, list) or not all(isinstance(each, str) for each in splits):
        raise _damaged(place)
    if len(splits) != 1:
        names = ", ".join(splits) or "none"
        first = f"{place.rstrip('/')}/{splits[0] if splits else 'train'}"
        limit = f"is a saved dataset with the splits {names}; name one, as in {first}"
        raise InvalidRequest("input", place, limit)
    if Path(splits[0]).name != splits[0]:
        raise _damaged(place)
    return str(splits[0])


def _parsed(place: str, content: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise _damaged(place)
    return parsed


def _damaged(place: str) -> InvalidRequest:
    limit = f"is a saved dataset, and its {STATE} or {SPLITS} is damaged"
    return InvalidRequest("input", place, limit)
