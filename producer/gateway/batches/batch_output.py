"""Write the output of a batch: a line for each request whose images are there, and one for each
that failed.

Input: a bulk run, and the rejected rows. Output: two files. The addresses in them are paths; they
are signed anew whenever somebody reads the file. Memory holds one shard's metadata.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.sample_reader import read_metadata
from imagefleet.producer.gateway.batches.run_order import BATCH_PREFIX
from imagefleet.producer.gateway.batches.unfinished_shards import UnfinishedShards
from imagefleet.producer.gateway.openai.errors import error_body
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.bulk.commit_markers import read_marker
from imagefleet.shared.bulk.file_layout import (
    EXTENSION,
    MAX_TEXT_BYTES,
    file_key,
    metadata_key,
    plan_key,
)
from imagefleet.shared.bulk.plan import ShardPlan, ShardRow
from imagefleet.shared.jobs.model import ImageFormat

FILE_PATH: Final = "/v1/runs/{run_id}/files/{key}"
_CALLERS_FAULT: Final = frozenset({"invalid_request", "invalid_input"})


@dataclass(frozen=True, kw_only=True)
class Failure:
    """It says why a request failed."""

    code: str
    message: str
    param: str | None = None


@dataclass(kw_only=True)
class BatchOutput:
    """Writes the two files of one batch."""

    batch_id: str
    run: BulkRun
    created_at: int
    output: BinaryIO = field(repr=False)
    errors: BinaryIO = field(repr=False)
    missing: Failure
    """It says why nobody has worked on the rest."""
    done: int = 0
    failed: int = 0
    images: int = 0
    """So many images are in the output."""

    def write(self) -> None:
        """Write the lines of all planned requests, in the order of the shards.

        A request of an unfinished shard has its images if all of them are in checkpoints.
        """
        unfinished = UnfinishedShards(self.run)
        for shard in self.run.plan.shards:
            self._write_shard(shard, unfinished)

    def _write_shard(self, shard: ShardPlan, unfinished: UnfinishedShards) -> None:
        run = self.run
        rows = run.plan.read_rows(shard, run.store.get(plan_key(shard.name), MAX_TEXT_BYTES))
        marker = read_marker(run.store, run.plan, shard)
        failures = {} if marker is None else {each.row: each for each in marker.failures}
        if marker is None:
            made = unfinished.store_images(shard)
        else:
            made = read_metadata(run.store.get(metadata_key(shard.name), MAX_TEXT_BYTES))
        samples: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for document in made:
            samples[document["row"]].append(document)
        for row in rows:
            documents = samples.get(row.row, [])
            needed = 1 if marker is not None else len(run.plan.images_of(row))
            if len(documents) >= needed:
                self._write_images(shard, row, documents)
            elif failure := failures.get(row.row):
                status = 400 if failure.code in _CALLERS_FAULT else 500
                self._write_error(row, status, Failure(code=failure.code, message=failure.message))
            else:
                self._write_error(row, None, self.missing)

    def _write_images(
        self, shard: ShardPlan, row: ShardRow, documents: list[dict[str, Any]]
    ) -> None:
        first, image_format = documents[0], self.run.plan.image_format
        body = {
            "created": self.created_at,
            "background": "opaque",
            "output_format": image_format.value,
            "size": f"{first['width']}x{first['height']}",
            "data": [self._image(shard, each, image_format) for each in documents],
        }
        line = _line(self.batch_id, row.row, _custom_id(row), _response(200, body), None)
        self.output.write(line)
        self.done += 1
        self.images += len(documents)

    def _write_error(self, row: ShardRow, status: int | None, failure: Failure) -> None:
        line = error_line(self.batch_id, row.row, _custom_id(row), status, failure)
        self.errors.write(line)
        self.failed += 1

    def _image(
        self, shard: ShardPlan, document: dict[str, Any], image_format: ImageFormat
    ) -> dict[str, Any]:
        key = file_key(shard.name, f"{document['key']}.{EXTENSION[image_format]}")
        return {
            "url": FILE_PATH.format(run_id=self.batch_id, key=key),
            "seed": document["seed"],
            "key": document["key"],
        }


def error_line(
    batch_id: str, row: int, custom_id: str, status: int | None, failure: Failure
) -> bytes:
    """Return the line of a request that failed.

    Args:
        status: that with which it would be answered alone. None: nobody has worked on it.
    """
    error = {"code": failure.code, "message": failure.message}
    if status is None:
        return _line(batch_id, row, custom_id, None, error)
    problem = Problem(status, failure.code, failure.message, field=failure.param)
    return _line(batch_id, row, custom_id, _response(status, error_body(problem)), None)


def rejected_file_id(batch_id: str) -> str:
    """Return the id of the file with the lines of requests that were never planned."""
    return f"rejected-{batch_id}"


def _response(status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "body": body}


def _line(
    batch_id: str,
    row: int,
    custom_id: str,
    response: dict[str, Any] | None,
    error: dict[str, Any] | None,
) -> bytes:
    request_id = f"batch_req_{batch_id.removeprefix(BATCH_PREFIX)}_{row}"
    if response is not None:
        response = {**response, "request_id": request_id}
    line = {"id": request_id, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(line).encode() + b"\n"


def _custom_id(row: ShardRow) -> str:
    return str(row.extra.get("custom_id", ""))


def signed_lines(lines: Iterable[bytes], sign: Callable[[str], str]) -> Iterator[bytes]:
    """Yield the lines of an output file with addresses that open for a while.

    Args:
        sign: takes a path and returns its address.
    """
    for line in lines:
        document = json.loads(line)
        response = document["response"] or {}
        for image in response.get("body", {}).get("data", ()):
            image["url"] = sign(image["url"])
        yield json.dumps(document).encode() + b"\n"


def lines_of(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file that comes in parts, without their ends."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    if rest:
        yield rest
