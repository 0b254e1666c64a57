"""Hold a dataset against its plan: every planned sample once, every file as it was stored, and some
pictures painted again.

Goes in: a plan and its store. Comes out: a `VerifyReport` with the problems found, by shard. Reads
one shard's file at a time, and changes nothing.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from imagefleet.producer.bulk.regenerate import Regenerate
from imagefleet.producer.bulk.sample_reader import (
    EXTENSION,
    DamagedFile,
    read_image,
    sample_keys_in,
    read_metadata,
)
from imagefleet.shared.bulk.file_layout import (
    archive_key,
    metadata_key,
    parquet_key,
    plan_key,
    sample_key,
    stats_key,
)
from imagefleet.shared.bulk.plan import BulkFormat, Plan, ShardPlan, ShardRow
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.errors import ConfigurationError, ImagefleetError, PlanDamaged
from imagefleet.shared.storage import ObjectStore

_MAX_DIFFERENCE: Final = 1
"""A sample painted on other devices may differ by this much of 255."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is not as planned."""

    shard: str
    what: str
    """`unfinished`, `missing file`, `changed file`, `damaged file`, `missing samples`, `unplanned
    samples`, `repeated samples`, `other rows`, `stray file`, `different picture`, `not compared`
    or `damaged plan`"""
    detail: str
    samples: int = 0
    """How many it concerns, where that is known."""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What was looked at and what was found."""

    shards: int
    planned: int
    """Samples"""
    present: int
    failed: int
    """Samples that could not be painted, and are told in the commit markers: no problem."""
    regenerated: int
    max_difference: int
    """Largest difference of a picture painted again, of 255."""
    problems: tuple[Problem, ...]

    @property
    def clean(self) -> bool:
        return not self.problems

    @property
    def unplanned_files(self) -> int:
        """Files that nobody planned. They are the user's to delete."""
        return sum(problem.what == "stray file" for problem in self.problems)


def verify(
    plan: Plan, store: ObjectStore, regenerate: Regenerate, *, sample: int = 0, seed: int = 0
) -> VerifyReport:
    """Look at every shard, and have `sample` rows painted again, drawn with `seed`."""
    verification = _Verification(plan, store)
    for shard in plan.shards:
        verification.check_shard(shard)
    verification.find_unplanned_files()
    if sample:
        verification.compare(sample, regenerate, random.Random(seed))
    return verification.report()


class _Verification:
    def __init__(self, plan: Plan, store: ObjectStore) -> None:
        self._plan = plan
        self._store = store
        self._problems: list[Problem] = []
        self._intact: list[tuple[ShardPlan, int]] = []
        """Shards without a problem, and how many samples each has."""
        self._finished: set[str] = set()
        self._files: set[str] = set()
        """Named by commit markers."""
        self._present = self._failed = self._regenerated = self._levels = 0

    def report(self) -> VerifyReport:
        return VerifyReport(
            shards=len(self._plan.shards),
            planned=self._plan.samples,
            present=self._present,
            failed=self._failed,
            regenerated=self._regenerated,
            max_difference=self._levels,
            problems=tuple(self._problems),
        )

    def check_shard(self, shard: ShardPlan) -> None:
        before = len(self._problems)
        self._problems += self._problems_of(shard)
        if len(self._problems) == before:
            self._intact.append((shard, shard.samples))

    def _problems_of(self, shard: ShardPlan) -> Iterator[Problem]:
        try:
            rows = self._rows(shard)
            stats = ShardStats.model_validate_json(self._store.get(stats_key(shard.name)))
        except PlanDamaged as error:
            yield Problem(shard=shard.name, what="damaged plan", detail=str(error))
            return
        except (KeyError, ValueError):
            detail = f"no {stats_key(shard.name)} that can be read"
            yield Problem(shard=shard.name, what="unfinished", detail=detail, samples=shard.samples)
            return
        if stats.plan_sha256 != shard.sha256:
            detail = f"{stats_key(shard.name)} is of other rows than those planned"
            yield Problem(shard=shard.name, what="unfinished", detail=detail, samples=shard.samples)
            return
        failed = {failure.row for failure in stats.failures}
        self._failed += stats.failed
        wanted = {
            sample_key(row.row, image): row
            for row in rows
            if row.row not in failed
            for image in range(self._plan.images_of(row))
        }
        self._finished.add(shard.name)
        self._files.update(file.key for file in stats.files)
        data: dict[str, bytes] = {}
        yield from self._changed_files(shard, stats, data)
        yield from self._samples(shard, wanted.keys(), data)
        if (metadata := data.get(metadata_key(shard.name))) is not None:
            yield from _other_rows(shard.name, wanted, metadata)

    def find_unplanned_files(self) -> None:
        """Files that readers of the dataset would take for a part of it, and nobody planned."""
        planned = {shard.name for shard in self._plan.shards}
        for key in self._store.list():
            shard = re.split("[./]", key, maxsplit=1)[0]
            told = key == stats_key(shard) or key in self._files
            is_stray = shard not in planned or (shard in self._finished and not told)
            if shard.isdecimal() and is_stray:
                self._problems.append(Problem(shard=shard, what="stray file", detail=key))

    def _rows(self, shard: ShardPlan) -> list[ShardRow]:
        """Raises PlanDamaged."""
        try:
            data = self._store.get(plan_key(shard.name))
        except KeyError:
            raise PlanDamaged(f"{plan_key(shard.name)} is missing") from None
        return list(self._plan.read_rows(shard, data))

    def _changed_files(
        self, shard: ShardPlan, stats: ShardStats, data: dict[str, bytes]
    ) -> Iterator[Problem]:
        """Hold files against their SHA-256; keep in `data` those that list samples, and the names
        of the others that were read."""
        listing = {self._listing(shard.name), metadata_key(shard.name)}
        for file in stats.files:
            try:
                content = self._store.get(file.key)
            except KeyError:
                yield Problem(shard=shard.name, what="missing file", detail=file.key)
                continue
            data[file.key] = content if file.key in listing else b""
            if hashlib.sha256(content).hexdigest() != file.sha256:
                detail = f"{file.key}: its SHA-256 differs from that in the commit marker"
                if len(content) != file.size:
                    detail += f"; it has {len(content)} bytes, not {file.size}"
                yield Problem(shard=shard.name, what="changed file", detail=detail)

    def _samples(
        self, shard: ShardPlan, wanted: Set[str], data: dict[str, bytes]
    ) -> Iterator[Problem]:
        """Every planned sample once, in the pictures and in the metadata."""
        for key, listed in self._lists(shard, data):
            try:
                found = Counter(listed())
            except DamagedFile as error:
                yield Problem(shard=shard.name, what="damaged file", detail=f"{key} {error}")
                continue
            if key != metadata_key(shard.name):
                self._present += len(wanted & found.keys())
            for what, keys in (
                ("missing samples", wanted - found.keys()),
                ("unplanned samples", found.keys() - wanted),
                ("repeated samples", {name for name, times in found.items() if times > 1}),
            ):
                if keys:
                    detail = f"{key}: {', '.join(sorted(keys)[:3])}{' …' if len(keys) > 3 else ''}"
                    yield Problem(shard=shard.name, what=what, detail=detail, samples=len(keys))

    def _lists(
        self, shard: ShardPlan, data: dict[str, bytes]
    ) -> Iterator[tuple[str, Callable[[], list[str]]]]:
        """The files that tell a shard's samples, and how."""
        plan = self._plan
        if plan.format is BulkFormat.FILES:
            prefix, suffix = f"{shard.name}/", f".{EXTENSION[plan.image_format]}"
            names = [key.removeprefix(prefix) for key in data]
            keys = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
            yield prefix, lambda: keys
        elif content := data.get(self._listing(shard.name)):
            yield (
                self._listing(shard.name),
                lambda: sample_keys_in(content, plan.format, plan.image_format),
            )
        if (metadata := data.get(metadata_key(shard.name))) is not None:
            yield metadata_key(shard.name), lambda: [t[0] for t in read_metadata(metadata)]

    def _listing(self, shard: str) -> str:
        return parquet_key(shard) if self._plan.format is BulkFormat.PARQUET else archive_key(shard)

    def compare(self, sample: int, regenerate: Regenerate, draw: random.Random) -> None:
        """Paint pictures of whole shards again, and hold them against those stored."""
        if not self._intact:
            return
        weights = [samples for _, samples in self._intact]
        for shard, _ in draw.choices(self._intact, weights, k=sample):
            row = draw.choice(self._rows(shard))
            stats = ShardStats.model_validate_json(self._store.get(stats_key(shard.name)))
            if row.row in {failure.row for failure in stats.failures}:
                continue
            self._compare_row(shard, row, regenerate)

    def _compare_row(self, shard: ShardPlan, row: ShardRow, regenerate: Regenerate) -> None:
        plan = self._plan
        try:
            again = regenerate(plan.request(shard, row))
        except ImagefleetError as error:
            detail = f"row {row.row} could not be painted again: {error}"
            self._problems.append(Problem(shard=shard.name, what="not compared", detail=detail))
            return
        for image, painted in enumerate(again):
            key = sample_key(row.row, image)
            stored = read_image(self._store, shard.name, key, plan.format, plan.image_format)
            levels = pixel_difference(stored, painted)
            self._regenerated += 1
            self._levels = max(self._levels, levels)
            if levels > _MAX_DIFFERENCE:
                detail = (
                    f"{key} differs by up to {levels} of 255 levels from the same one painted now"
                )
                self._problems.append(
                    Problem(shard=shard.name, what="different picture", detail=detail, samples=1)
                )


def _other_rows(shard: str, wanted: dict[str, ShardRow], metadata: bytes) -> Iterator[Problem]:
    """Samples under a planned key that were made of another prompt or seed."""
    with suppress(DamagedFile):  # told before
        keys = [
            key
            for key, prompt, seed in read_metadata(metadata)
            if key in wanted and (prompt, seed) != (wanted[key].prompt, wanted[key].seed)
        ]
        if keys:
            detail = f"{', '.join(keys[:3])}{' …' if len(keys) > 3 else ''}"
            yield Problem(shard=shard, what="other rows", detail=detail, samples=len(keys))


def pixel_difference(one: bytes, other: bytes) -> int:
    """The largest difference of two picture files in any channel of any pixel; 255 if their sizes
    differ. Raises ConfigurationError without Pillow."""
    if one == other:
        return 0
    try:
        from PIL import Image, ImageChops
    except ImportError:
        raise ConfigurationError("comparing needs Pillow: install imagefleet[dataset]") from None
    with Image.open(BytesIO(one)) as first, Image.open(BytesIO(other)) as second:
        if first.size != second.size:
            return 255
        apart = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
    return max(level for level, pixels in enumerate(_levels(apart.histogram())) if pixels)


def _levels(histogram: list[int]) -> list[int]:
    """Pixels a level, the three channels together."""
    return [sum(histogram[level::256]) for level in range(256)]
