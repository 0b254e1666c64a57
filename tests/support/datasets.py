"""Plan and read datasets without the producer's code, so that tests judge the workers' files
independently."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from imagefleet.shared.bulk.file_layout import PLAN, RUN_STATS, plan_key, shard_name
from imagefleet.shared.bulk.plan import (
    BulkFormat,
    Plan,
    RowParameters,
    ShardPlan,
    ShardRow,
    Source,
    run_id,
)
from imagefleet.shared.bulk.records import NewRun
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import ShardToSend, shards_to_send
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import open_store
from imagefleet.worker.bulk.destinations import DestinationPolicy
from tests.support.files import files_below

ANY_FOLDER = DestinationPolicy.parse("file://./out", ())
"""The policy of a worker whose store is a folder."""
RUN = NewRun(
    id="0123456789abcdef",
    destination="file:///somewhere/",
    plan_digest="d" * 64,
    model=None,
    shards=3,
    samples=12,
    max_failures=None,
    priority=3,
)
SHARDS = [ShardToSend(number, samples=4) for number in range(3)]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A planned dataset in a folder, with the records of its run."""

    folder: Path
    plan: Plan
    run: NewRun
    runs: RunRecords

    def send(self) -> None:
        """Start the run and enqueue its shards."""
        self.runs.start(self.run)
        self.runs.enqueue(self.run, shards_to_send(self.plan, self.plan.shards))

    def samples(self) -> dict[str, list[str]]:
        """Return the file suffixes by key in all finished tars. Fail if a key appears twice."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.glob("[0-9]*.tar")):
            with tarfile.open(path) as archive:
                names = archive.getnames()
            here: dict[str, list[str]] = {}
            for name in names:
                key, _, suffix = name.partition(".")
                here.setdefault(key, []).append(suffix)
            assert not found.keys() & here.keys()
            found |= here
        return found

    def stats(self, shard: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (self.folder / f"{shard_name(shard)}.stats.json").read_bytes()
        )
        return document

    def documents(self, shard: int) -> list[dict[str, Any]]:
        lines = (self.folder / f"{shard_name(shard)}.jsonl").read_bytes().splitlines()
        return [json.loads(line) for line in lines]

    def files(self) -> dict[str, bytes]:
        """Return the files by path, without plan, checkpoints and hidden files of killed writes.

        A worker deletes the checkpoints of a shard after it has recorded its success.
        """
        others = (self.folder / "plan", self.checkpoints)
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in files_below(self.folder)
            if not path.name.startswith(".") and not any(map(path.is_relative_to, others))
        }

    @property
    def checkpoints(self) -> Path:
        """The folder of the shards' checkpoints."""
        return self.folder / "parts"

    def is_finished(self) -> bool:
        """Return whether the run has ended, and its summary exists if it succeeded."""
        status = self.runs.get(self.run.id)
        summed_up = (self.folder / RUN_STATS).exists()
        return status.done and (summed_up or status.state is not State.SUCCEEDED)


def planned_dataset(
    folder: Path,
    client: redis.Redis,
    namespace: str,
    prompts: Iterable[str],
    *,
    shard_size: int = 20,
    images: int = 1,
    format: BulkFormat = BulkFormat.WEBDATASET,
    max_failures: int | None = None,
    model_digest: str | None = None,
    steps: int | None = None,
) -> Dataset:
    """Plan a dataset of `prompts` in `folder`. The seed of a row is its number."""
    store = open_store(folder.as_uri())
    rows = [ShardRow(row=n, prompt=prompt, seed=n) for n, prompt in enumerate(prompts)]
    a_shard = shard_size // images
    shards: list[ShardPlan] = []
    for at in range(0, len(rows), a_shard):
        chosen = rows[at : at + a_shard]
        lines = "".join(f"{row.model_dump_json(exclude_defaults=True)}\n" for row in chosen)
        name = shard_name(len(shards))
        store.put(plan_key(name), lines.encode(), "application/jsonl")
        digest = hashlib.sha256(lines.encode()).hexdigest()
        shards.append(
            ShardPlan(name=name, rows=len(chosen), samples=len(chosen) * images, sha256=digest)
        )
    plan = Plan(
        format=format,
        shard_size=shard_size,
        parameters=RowParameters(num_images_per_prompt=images, num_inference_steps=steps),
        model_digest=model_digest,
        source=Source(name="test"),
        rows=len(rows),
        samples=len(rows) * images,
        shards=tuple(shards),
        created_at="now",
    )
    store.put(PLAN, plan.dump(), "application/json")
    run = NewRun(
        id=run_id(store.url, plan),
        destination=store.url,
        plan_digest=plan.digest,
        model=None,
        shards=len(shards),
        samples=plan.samples,
        max_failures=max_failures,
        priority=9,
    )
    return Dataset(
        folder=folder, plan=plan, run=run, runs=RunRecords(client, namespace, retention_s=3600)
    )


def read_tar(data: bytes) -> dict[str, bytes]:
    """Return the content of each file of a tar archive by name."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
        return found
