"""Rows that cannot be painted: kept while they are found, listed in the plan, told to the user."""

import json
import tempfile
from collections.abc import Iterator, Mapping

from imagefleet.producer.bulk.readers import RejectedRow
from imagefleet.producer.bulk.row_validation import escape_surrogates
from imagefleet.shared.bulk.file_layout import REJECTED
from imagefleet.shared.bulk.plan import canonical_json
from imagefleet.shared.storage import ObjectStore


class RejectedRowsFile:
    """Rows that cannot be painted, on disk: there may be as many as rows."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="imagefleet-rejected-")  # noqa: SIM115
        self.count = 0
        self.first = ""
        """Said when there is no other row."""

    def add(self, number: int, wrong: RejectedRow) -> None:
        rejected = {
            "row": number,
            "field": escape_surrogates(wrong.field),
            "value": wrong.value and escape_surrogates(wrong.value),
            "reason": escape_surrogates(wrong.reason),
        }
        if not self.count:
            self.first = f"; {describe_rejected(rejected)}"
        self.count += 1
        self.file.write(canonical_json(rejected) + b"\n")

    def close(self) -> None:
        self.file.close()


def read_rejected(store: ObjectStore) -> Iterator[dict[str, object]]:
    """The rows of a plan that cannot be painted: row, field, value, reason."""
    try:
        data = store.get(REJECTED)
    except KeyError:
        return
    for line in data.splitlines():
        yield json.loads(line)


def describe_rejected(rejected: Mapping[str, object]) -> str:
    """A rejected row in one sentence."""
    shown = "" if rejected["value"] is None else f"={rejected['value']!r}:"
    return f"row {rejected['row']}: {rejected['field']}{shown} {rejected['reason']}"
