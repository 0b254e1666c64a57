"""Verify a dataset: its files by their digests, its samples by the plan, and some images by
generating them again.

Input: a plan and its store. Output: a `VerifyReport` with the problems of each shard. Memory holds
one shard's files at a time. Nothing is changed.
"""

import hashlib
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import accumulate, groupby
from typing import Final

from imagefleet.producer.bulk.regenerate import Regenerate, pixel_difference
from imagefleet.producer.bulk.sample_reader import (
    DamagedFile,
    read_image,
    read_metadata,
    sample_keys_in,
)
from imagefleet.producer.bulk.verify_report import Problem, VerifyReport
from imagefleet.producer.bulk.wrong_rows import wrong_rows
from imagefleet.shared.bulk.commit_markers import difference_from_plan
from imagefleet.shared.bulk.file_layout import (
    EXTENSION,
    images_key,
    metadata_key,
    plan_key,
    sample_key,
    stats_key,
)
from imagefleet.shared.bulk.plan import Plan, ShardPlan, ShardRow
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.errors import ImagefleetError, PlanDamaged
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import counted

OnShard = Callable[[int, int], None]
"""It is called after each shard, with the shards that were checked and the problems so far. What it
raises ends the verification."""
_MAX_DIFFERENCE: Final = 1
"""Levels, of 255, by which an image may differ that other devices generated."""


def ignore(checked: int, problems: int) -> None:
    """Do nothing after a shard."""


def verify(
    plan: Plan,
    store: ObjectStore,
    regenerate: Regenerate,
    *,
    sample: int = 0,
    seed: int = 0,
    on_shard: OnShard = ignore,
) -> VerifyReport:
    """Check every shard, and compare `sample` rows, or all if there are fewer, with images
    generated now. Rows are drawn with `seed`."""
    verification = _Verification(plan, store)
    for number, shard in enumerate(plan.shards, 1):
        verification.check_shard(shard)
        on_shard(number, verification.problems)
    verification.find_unplanned_files()
    if sample:
        verification.compare(sample, regenerate, random.Random(seed))
    return verification.report()


class _Verification:
    """Verifies one dataset and collects the problems."""

    def __init__(self, plan: Plan, store: ObjectStore) -> None:
        self._plan = plan
        self._store = store
        self._problems: list[Problem] = []
        self._intact: list[ShardPlan] = []
        """These shards have no problem."""
        self._finished: set[str] = set()
        self._files: set[str] = set()
        """Commit markers name these keys."""
        self._present = self._failed = self._max_difference = 0
        self._regenerated_rows = self._regenerated = 0

    @property
    def problems(self) -> int:
        """Return how many problems were found so far."""
        return len(self._problems)

    def report(self) -> VerifyReport:
        return VerifyReport(
            shards=len(self._plan.shards),
            planned=self._plan.samples,
            present=self._present,
            failed=self._failed,
            regenerated_rows=self._regenerated_rows,
            regenerated=self._regenerated,
            max_difference=self._max_difference,
            problems=tuple(self._problems),
        )

    def check_shard(self, shard: ShardPlan) -> None:
        before = len(self._problems)
        self._problems += self._problems_of(shard)
        if len(self._problems) == before:
            self._intact.append(shard)

    def _problems_of(self, shard: ShardPlan) -> Iterator[Problem]:
        try:
            rows = self._rows(shard)
            stats = ShardStats.model_validate_json(self._store.get(stats_key(shard.name)))
        except PlanDamaged as error:
            yield Problem(shard=shard.name, what="damaged plan", detail=str(error))
            return
        except (KeyError, ValueError):
            detail = f"{stats_key(shard.name)} is missing or cannot be read"
            yield Problem(shard=shard.name, what="unfinished", detail=detail, samples=shard.samples)
            return
        if difference := difference_from_plan(stats, self._plan, shard):
            detail = f"{stats_key(shard.name)} {difference}"
            yield Problem(shard=shard.name, what="unfinished", detail=detail, samples=shard.samples)
            return
        failed = {failure.row for failure in stats.failures}
        self._failed += stats.failed
        wanted = {
            sample_key(row.row, image): row
            for row in rows
            if row.row not in failed
            for image in self._plan.images_of(row)
        }
        self._finished.add(shard.name)
        self._files.update(file.key for file in stats.files)
        data: dict[str, bytes] = {}
        yield from self._changed_files(shard, stats, data)
        yield from self._samples(shard, wanted.keys(), data)
        if (metadata := data.get(metadata_key(shard.name))) is not None:
            yield from self._wrong_rows(shard, wanted, metadata)

    def find_unplanned_files(self) -> None:
        """Find files that readers would take for shards, but that the plan does not contain."""
        planned = {shard.name for shard in self._plan.shards}
        for key in self._store.list():
            shard = re.split("[./]", key, maxsplit=1)[0]
            is_listed = key == stats_key(shard) or key in self._files
            is_unplanned = shard not in planned or (shard in self._finished and not is_listed)
            if shard.isdecimal() and is_unplanned:
                self._problems.append(Problem(shard=shard, what="unplanned file", detail=key))

    def _rows(self, shard: ShardPlan) -> list[ShardRow]:
        """Return the rows of a shard. Raise PlanDamaged if its row file is missing or changed."""
        try:
            data = self._store.get(plan_key(shard.name))
        except KeyError:
            raise PlanDamaged(f"{plan_key(shard.name)} is missing") from None
        return list(self._plan.read_rows(shard, data))

    def _changed_files(
        self, shard: ShardPlan, stats: ShardStats, data: dict[str, bytes]
    ) -> Iterator[Problem]:
        """Check files against their SHA-256. Add them to `data` by key, with their content only if
        they list samples."""
        listing = {images_key(self._plan.format, shard.name), metadata_key(shard.name)}
        for file in stats.files:
            try:
                content = self._store.get(file.key)
            except KeyError:
                yield Problem(shard=shard.name, what="missing file", detail=file.key)
                continue
            data[file.key] = content if file.key in listing else b""
            if hashlib.sha256(content).hexdigest() != file.sha256:
                detail = f"{file.key}: its SHA-256 differs from the one in the commit marker"
                if len(content) != file.size:
                    detail += f"; it has {counted(len(content), 'byte')}, not {file.size:,}"
                yield Problem(shard=shard.name, what="changed file", detail=detail)

    def _samples(
        self, shard: ShardPlan, wanted: Set[str], data: dict[str, bytes]
    ) -> Iterator[Problem]:
        """Check that images and metadata contain every planned sample exactly once."""
        for key, list_samples in self._lists(shard, data):
            try:
                counts = Counter(list_samples())
            except DamagedFile as error:
                yield Problem(shard=shard.name, what="damaged file", detail=f"{key} {error}")
                continue
            if key != metadata_key(shard.name):
                self._present += len(wanted & counts.keys())
            for what, keys in (
                ("missing samples", wanted - counts.keys()),
                ("unplanned samples", counts.keys() - wanted),
                ("repeated samples", {name for name, times in counts.items() if times > 1}),
            ):
                if keys:
                    detail = f"{key}: {', '.join(sorted(keys)[:3])}{' …' if len(keys) > 3 else ''}"
                    yield Problem(shard=shard.name, what=what, detail=detail, samples=len(keys))

    def _lists(
        self, shard: ShardPlan, data: dict[str, bytes]
    ) -> Iterator[tuple[str, Callable[[], list[str]]]]:
        """Yield the files that list a shard's samples, with a function that reads the keys."""
        plan, key = self._plan, images_key(self._plan.format, shard.name)
        if key is None:
            prefix, suffix = f"{shard.name}/", f".{EXTENSION[plan.image_format]}"
            names = [name.removeprefix(prefix) for name in data]
            keys = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
            yield prefix, lambda: keys
        elif content := data.get(key):
            yield key, lambda: sample_keys_in(content, plan.format, plan.image_format)
        if (lines := data.get(metadata_key(shard.name))) is not None:
            yield metadata_key(shard.name), lambda: [each["key"] for each in read_metadata(lines)]

    def _wrong_rows(
        self, shard: ShardPlan, wanted: Mapping[str, ShardRow], metadata: bytes
    ) -> Iterator[Problem]:
        """Find samples with a planned key whose metadata are not those of their row."""
        with suppress(DamagedFile):  # reported by `_samples`
            wrong = wrong_rows(self._plan, wanted, read_metadata(metadata))
            for what, keys in wrong.items():
                detail = f"{', '.join(keys[:3])}{' …' if len(keys) > 3 else ''}"
                yield Problem(shard=shard.name, what=what, detail=detail, samples=len(keys))

    def compare(self, sample: int, regenerate: Regenerate, rng: random.Random) -> None:
        """Generate `sample` rows of intact shards again, each once, and compare their images.

        Rows among them that have failed are left out.
        """
        ends = list(accumulate(shard.rows for shard in self._intact))
        rows_in_all = ends[-1] if ends else 0
        drawn = sorted(rng.sample(range(rows_in_all), min(sample, rows_in_all)))
        for index, numbers in groupby(drawn, lambda number: bisect_right(ends, number)):
            shard = self._intact[index]
            rows = self._rows(shard)
            stats = ShardStats.model_validate_json(self._store.get(stats_key(shard.name)))
            failed = {failure.row for failure in stats.failures}
            for number in numbers:
                row = rows[number - ends[index]]  # counted from the end of the shard
                if row.row not in failed:
                    self._compare_row(shard, row, regenerate)

    def _stored_request(self, shard: ShardPlan, row: ShardRow) -> JobRequest:
        """Return the request of a row with the `strength` of its samples. It may have been the
        default of another release."""
        request = self._plan.request(shard, row)
        documents = read_metadata(self._store.get(metadata_key(shard.name)))
        strengths = {each["key"]: each.get("strength") for each in documents}
        stored = strengths[sample_key(row.row, request.images[0])]
        return request if stored is None else request.model_copy(update={"strength": stored})

    def _compare_row(self, shard: ShardPlan, row: ShardRow, regenerate: Regenerate) -> None:
        plan = self._plan
        try:
            request = self._stored_request(shard, row)
            regenerated = regenerate(request)
        except ImagefleetError as error:
            detail = f"row {row.row} could not be generated again: {error}"
            self._problems.append(Problem(shard=shard.name, what="not compared", detail=detail))
            return
        self._regenerated_rows += 1
        for image, data in zip(request.images, regenerated, strict=True):
            key = sample_key(row.row, image)
            stored = read_image(self._store, shard.name, key, plan.format, plan.image_format)
            difference = pixel_difference(stored, data)
            self._regenerated += 1
            self._max_difference = max(self._max_difference, difference)
            if difference > _MAX_DIFFERENCE:
                detail = f"{key} differs by up to {difference} of 255 levels from an image made now"
                self._problems.append(
                    Problem(shard=shard.name, what="different image", detail=detail, samples=1)
                )
