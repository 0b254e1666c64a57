"""Collect rejected rows during planning, read them from the plan, and describe them."""

import json
import tempfile
from collections.abc import Iterator, Mapping

from imagefleet.producer.bulk.readers import RejectedRow
from imagefleet.producer.bulk.row_validation import escape_surrogates
from imagefleet.shared.bulk.file_layout import REJECTED
from imagefleet.shared.bulk.plan import canonical_json
from imagefleet.shared.storage import ObjectStore


class RejectedRowsFile:
    """Collects rejected rows in a temporary file, because all rows may be rejected."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="imagefleet-rejected-")  # noqa: SIM115
        self.count = 0
        self.first_reason = ""
        """Text for the error that is raised if all rows are rejected."""

    def add(self, number: int, row: RejectedRow) -> None:
        document = {
            "row": number,
            "field": escape_surrogates(row.field),
            "value": row.value and escape_surrogates(row.value),
            "reason": escape_surrogates(row.reason),
        }
        if not self.count:
            self.first_reason = f"; {describe_rejected(document)}"
        self.count += 1
        self.file.write(canonical_json(document) + b"\n")

    def close(self) -> None:
        self.file.close()


def read_rejected(store: ObjectStore) -> Iterator[dict[str, object]]:
    """Yield the rejected rows of a plan: row, field, value, reason."""
    try:
        data = store.get(REJECTED)
    except KeyError:
        return
    for line in data.splitlines():
        yield json.loads(line)


def describe_rejected(rejected: Mapping[str, object]) -> str:
    """Return one sentence about a rejected row."""
    value = "" if rejected["value"] is None else f"={rejected['value']!r}:"
    return f"row {rejected['row']}: {rejected['field']}{value} {rejected['reason']}"
