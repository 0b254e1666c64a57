"""Find the types of all metadata of a dataset, for the card of a WebDataset.

Without them `datasets` takes the types of the first five samples for those of all, and drops or
refuses what differs later. Input: finished shards. Output: `dataset_info.features` as YAML, in the
form of https://huggingface.co/docs/datasets/about_dataset_features. This module needs neither
`datasets` nor a parser of YAML.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from imagefleet.shared.bulk.file_layout import EXTENSION, MAX_TEXT_BYTES, metadata_key
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.errors import StorageUnavailable
from imagefleet.shared.storage import ObjectStore

log = logging.getLogger(__name__)

Type = str | list[Any] | dict[str, Any]
"""It is the name of a scalar type, the type of the elements in a list, or the types of fields."""
_NULL: Final = "null"
_TEXT: Final = "string"
"""Text has this type, and values that have no other type in common."""
_INT64: Final = range(-(2**63), 2**63)
_NUMBERS: Final = ("int64", "float64")
_MAX_FIELDS: Final = 1_000
"""An object with more fields has values for names, as counts by word. It becomes text."""
_MAX_LINES: Final = 20_000
"""A card with more lines is not read by anybody."""
_UNPRINTABLE: Final = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""YAML does not allow these characters, or takes them for the end of a line."""


def features_yaml(store: ObjectStore, plan: Plan, markers: Iterable[ShardStats]) -> str | None:
    """Return the features of a WebDataset, each line with its indent.

    None: metadata cannot be read, or differ in too many names. The dataset is complete without.

    Raises:
        StorageUnavailable: the store cannot be reached now.
    """
    types: Type = _NULL
    try:
        for stats in markers:
            for line in store.get(metadata_key(stats.shard), MAX_TEXT_BYTES).splitlines():
                types = _common(types, _type_of(json.loads(line)))
        lines = list(_features(types, EXTENSION[plan.image_format]))
    except StorageUnavailable:
        raise
    except Exception as error:  # of a damaged file, by json or the store
        log.warning("the card gets no features: %s: %s", type(error).__name__, error)
        return None
    return "\n".join(lines) if len(lines) <= _MAX_LINES else None


def _type_of(value: object) -> Type:
    if value is None:
        return _NULL
    if isinstance(value, dict):
        if len(value) > _MAX_FIELDS:
            return _TEXT
        return {name: _type_of(each) for name, each in value.items()}
    if isinstance(value, list):
        found: Type = _NULL
        for each in value:
            found = _common(found, _type_of(each))
        return [found]
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if value in _INT64 else _TEXT
    return "float64" if isinstance(value, float) else _TEXT


def _common(one: Type, other: Type) -> Type:
    """Return the type that holds the values of both."""
    if one == other or other == _NULL:
        return one
    if one == _NULL:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        fields = {**one}
        for name, each in other.items():
            fields[name] = _common(fields.get(name, _NULL), each)
        return fields if len(fields) <= _MAX_FIELDS else _TEXT
    if isinstance(one, list) and isinstance(other, list):
        return [_common(one[0], other[0])]
    return "float64" if one in _NUMBERS and other in _NUMBERS else _TEXT


def _features(document: Type, extension: str) -> Iterator[str]:
    """Yield the lines of the files of a sample, and of the two columns that `datasets` adds."""
    yield from _field(extension, "image", "  ")
    yield from _field("json", document, "  ")
    for name in ("txt", "__key__", "__url__"):
        yield from _field(name, _TEXT, "  ")


def _field(name: str, kind: Type, indent: str) -> Iterator[str]:
    yield f"{indent}- name: {_quoted(name)}"
    yield from _type_lines(kind, f"{indent}  ")


def _type_lines(kind: Type, indent: str) -> Iterator[str]:
    if isinstance(kind, list):
        yield f"{indent}list:"
        yield from _type_lines(kind[0], f"{indent}  ")
    elif isinstance(kind, dict):
        yield f"{indent}struct:{'' if kind else ' []'}"
        for name, each in sorted(kind.items()):
            yield from _field(name, each, indent)
    else:
        yield f"{indent}dtype: {_quoted(kind)}"


def _quoted(text: str) -> str:
    """Return a text in YAML's double quotes, whose escapes are those of JSON."""
    return _UNPRINTABLE.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False)
    )
