"""Collect rejected rows during planning, read them from the plan, and describe them."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice

from imagefleet.producer.bulk.copied_columns import escape_surrogates
from imagefleet.producer.bulk.rows import RejectedRow
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

    def add(self, number: int, row: RejectedRow, place: tuple[str, int] | None = None) -> None:
        """Add a row. `place`: the table, and the row's number in it, if there are several."""
        document: dict[str, object] = {
            "row": number,
            "field": escape_surrogates(row.field),
            "value": row.value and escape_surrogates(row.value),
            "reason": escape_surrogates(row.reason),
        }
        if place is not None:
            document |= {"input": escape_surrogates(place[0]), "input_row": place[1]}
        if not self.count:
            self.first_reason = f"; {describe_rejected(document)}"
        self.count += 1
        self.file.write(canonical_json(document) + b"\n")

    def first(self, count: int) -> list[dict[str, object]]:
        """Return the first rows."""
        self.file.seek(0)
        return [json.loads(line) for line in islice(self.file, count)]

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
    place = f" ({rejected['input']}, row {rejected['input_row']})" if "input" in rejected else ""
    return f"row {rejected['row']}{place}: {rejected['field']}{value} {rejected['reason']}"
