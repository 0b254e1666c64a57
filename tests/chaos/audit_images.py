"""Check that the store holds exactly the images of the jobs that succeeded.

The content of each object follows from the planned job alone.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.result import ImageResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.job_keys import metadata_key
from tests.chaos.audit import AuditReport
from tests.chaos.oracle import FAKE, ExpectedImage, Oracle
from tests.chaos.planned_jobs import PlannedJob

_READERS: Final = 4


def audit_images(
    report: AuditReport,
    planned: Mapping[str, PlannedJob],
    statuses: Mapping[str, JobStatus],
    store: ObjectStore,
    hostile: Mapping[str, JobStatus] = MappingProxyType({}),
    oracle: Oracle = FAKE,
) -> None:
    """Compare every object of the store with what the planned jobs must have stored.

    Of the `hostile` jobs, which are not planned, images must be as their records say. Each object
    is read once.
    """
    section = "objects"
    keys = list(store.list("jobs/"))
    with ThreadPoolExecutor(_READERS) as pool:
        objects = dict(zip(keys, pool.map(store.get, keys), strict=True))
    missing: list[str] = []
    other: list[str] = []
    expected: set[str] = set()
    for job_id, status in statuses.items():
        if status.state is State.SUCCEEDED and job_id in planned and not planned[job_id].poison:
            for key, problem in _compared(planned[job_id], status, objects, oracle):
                expected.add(key)
                if problem:
                    (missing if key not in objects else other).append(f"{key}: {problem}")
    of_hostile = {key for key in objects if _job_id(key) in hostile}
    rest = objects.keys() - expected - of_hostile
    unfinished = {key for key in rest if _is_of_unfinished_job(key, planned, statuses, oracle)}
    report.note(
        section, "images of succeeded jobs", sum(not _is_metadata_file(k) for k in expected)
    )
    if oracle.rounded:
        report.note(section, "of them a value is a level off", oracle.rounded)
    report.note(section, "metadata files", sum(_is_metadata_file(key) for key in expected))
    report.note(section, "of jobs cancelled or failed after an upload", len(unfinished))
    report.expect_none(section, "missing", missing)
    report.expect_none(section, "other bytes, SHA-256 or pixels than the job's", other)
    report.expect_none(section, "unplanned objects", rest - unfinished)
    report.note(section, "of hostile jobs", len(of_hostile))
    unlike = [image.key for image in _images_of(hostile) if not _is_recorded(image, objects)]
    report.expect_none(section, "images of hostile jobs missing, or unlike their records", unlike)


def _compared(
    job: PlannedJob, status: JobStatus, objects: Mapping[str, bytes], oracle: Oracle
) -> Iterator[tuple[str, str]]:
    """Yield each key that a succeeded job must have, with what is wrong there or ''."""
    assert status.result is not None
    recorded = {image.index: image for image in status.result.images}
    expected = list(oracle.expected(job))
    if len(recorded) != len(expected):
        yield f"jobs/{job.id}/", f"{len(recorded)} images recorded, {len(expected)} requested"
    for each in expected:
        image = recorded.get(each.index)
        data = objects.get(each.key)
        yield each.key, _image_problem(each, image, data, oracle)
        metadata_file = metadata_key(job.id, each.index)
        yield metadata_file, _metadata_file_problem(job, each, objects.get(metadata_file), data)


def _image_problem(
    expected: ExpectedImage, image: ImageResult | None, data: bytes | None, oracle: Oracle
) -> str:
    if image is None or data is None:
        return "not there"
    if not oracle.agrees(expected, data):
        return "foreign"
    recorded = (image.key, image.sha256, image.size, image.seed)
    sha256 = hashlib.sha256(data).hexdigest()
    right = recorded == (expected.key, sha256, len(data), expected.seed)
    return "" if right else "recorded wrongly"


def _metadata_file_problem(
    job: PlannedJob, expected: ExpectedImage, data: bytes | None, image: bytes | None
) -> str:
    if data is None or image is None:
        return "not there"
    document = json.loads(data)
    described = (document["job_id"], document["image_index"], document["image"]["sha256"])
    sha256 = hashlib.sha256(image).hexdigest()
    return "" if described == (job.id, expected.index, sha256) else "of another image"


def _images_of(statuses: Mapping[str, JobStatus]) -> Iterator[ImageResult]:
    for status in statuses.values():
        yield from status.result.images if status.result is not None else ()


def _is_recorded(image: ImageResult, objects: Mapping[str, bytes]) -> bool:
    data = objects.get(image.key)
    return data is not None and hashlib.sha256(data).hexdigest() == image.sha256


def _is_of_unfinished_job(
    key: str,
    planned: Mapping[str, PlannedJob],
    statuses: Mapping[str, JobStatus],
    oracle: Oracle,
) -> bool:
    """Whether the key is one that a job would have used if it had succeeded, and it did not."""
    job_id = _job_id(key)
    if job_id not in planned or job_id not in statuses or statuses[job_id].state is State.SUCCEEDED:
        return False
    if planned[job_id].poison:
        return False
    image_keys = {each.key for each in oracle.expected(planned[job_id])}
    count = planned[job_id].request.num_images_per_prompt
    return key in image_keys | {metadata_key(job_id, index) for index in range(count)}


def _job_id(key: str) -> str:
    return key.split("/")[1]


def _is_metadata_file(key: str) -> bool:
    return key.endswith(".json")
