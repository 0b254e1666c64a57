"""Compare the rows of a stored plan with those that are planned now, shard by shard.

Input: a stored plan and the rows of new shards. Output: the first row that differs. Row files are
read only for shards that differ.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from imagefleet.producer.bulk.row_validation import Size
from imagefleet.shared.bulk.file_layout import MAX_TEXT_BYTES, plan_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import printable

_MAX_SHOWN: Final = 60


@dataclass(frozen=True, order=True)
class RowDifference:
    """A row that is not as it was planned."""

    row: int
    sentence: str


class PlanComparison:
    """Finds the first row in which new shards differ from those of a stored plan. Threads may share
    it."""

    def __init__(self, existing: Plan, store: ObjectStore) -> None:
        self.existing = existing
        self._store = store
        self._lock = threading.Lock()
        by_size: dict[Size, list[ShardPlan]] = defaultdict(list)
        for shard in existing.shards:
            by_size[shard.height, shard.width].append(shard)
        self._stored_by_size = {size: iter(shards) for size, shards in by_size.items()}
        self.first: RowDifference | None = None
        """It holds the difference in the first row that was found so far."""
        self.has_more = False
        """Whether there were more rows than planned."""

    def is_planned(self, number: int) -> bool:
        """Return whether the stored plan has a shard of this number."""
        return number < len(self.existing.shards)

    def next_stored(self, size: Size) -> ShardPlan | None:
        """Return the stored shard to compare the next new one of an image size with. More rows
        shift the numbers of shards, but not their order within a size."""
        return next(self._stored_by_size.get(size, iter(())), None)

    def add(self, stored: ShardPlan | None, planned: ShardPlan, lines: Sequence[str]) -> None:
        """Compare a new shard with the stored one that `next_stored` has returned."""
        if stored is None:
            self.has_more = True
            return
        if stored.sha256 == planned.sha256 or self._is_behind_first(lines):
            return
        with suppress(KeyError):  # without its row file no row can be named
            data = self._store.get(plan_key(stored.name), MAX_TEXT_BYTES)
            found = _first_difference(data.decode().splitlines(), lines)
            self.has_more = self.has_more or found is None
            with self._lock:
                self.first = min(filter(None, (self.first, found)), default=None)

    def _is_behind_first(self, lines: Sequence[str]) -> bool:
        with self._lock:
            return self.first is not None and self.first.row < json.loads(lines[0])["row"]


def end_of_rows(plan: Plan, store: ObjectStore) -> int:
    """Return the number behind the last planned row, from the last shard of each size.

    Raises:
        PlanDamaged: a row file is missing or changed.
    """
    end = 0
    for shard in {(shard.height, shard.width): shard for shard in plan.shards}.values():
        try:
            rows = plan.read_rows(shard, store.get(plan_key(shard.name), MAX_TEXT_BYTES))
        except KeyError:
            sentence = f"{store.url}{plan_key(shard.name)} is missing"
            raise PlanDamaged(
                f"{sentence}; the command that planned it writes it again without --append"
            ) from None
        end = max([end, *(row.row + 1 for row in rows)])
    return end


def _first_difference(stored: Sequence[str], new: Sequence[str]) -> RowDifference | None:
    """Return the first difference between the lines of two row files.

    None: the new one has all rows of the stored one, and more behind them.
    """
    for old_line, new_line in zip(stored, new, strict=False):
        if old_line != new_line:
            return _difference(json.loads(old_line), json.loads(new_line))
    if len(new) >= len(stored):
        return None
    return _left_out(json.loads(stored[len(new)]))


def _difference(old: dict[str, Any], new: dict[str, Any]) -> RowDifference:
    if old["row"] < new["row"]:
        return _left_out(old)
    row = new["row"]
    if old["row"] > row:
        return RowDifference(row, f"row {row} is {_shown(new)} now, and was not planned")
    if old["prompt"] != new["prompt"]:
        sentence = f"row {row} is {_shown(new)} now, and was planned as {_shown(old)}"
        return RowDifference(row, sentence)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return RowDifference(row, f"row {row}, {_shown(new)}, has another {' and '.join(names)} now")


def _left_out(old: dict[str, Any]) -> RowDifference:
    row = old["row"]
    return RowDifference(row, f"row {row} was planned as {_shown(old)}, and is not there now")


def _shown(row: dict[str, Any]) -> str:
    return repr(printable(str(row["prompt"]), _MAX_SHOWN))
