"""Whether the store holds exactly the pictures of the jobs that succeeded, byte by byte.

The fake engine paints a pure function of its spec, and encoding is deterministic: so what each
object must hold follows from the order alone.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from imagefleet.shared.jobs.model import ImageResult, JobStatus, State
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.job_keys import image_key, metadata_key
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.images.encode import encode
from imagefleet.worker.images.metadata import picture_metadata
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.chaos.ledger import Ledger
from tests.chaos.orders import SIZES, Order

_READERS: Final = 4
_ENGINE: Final = FakeEngine(shapes=[Shape(height=height, width=width) for height, width in SIZES])


@dataclass(frozen=True, kw_only=True)
class Painted:
    """One picture as it must be."""

    index: int
    key: str
    data: bytes
    seed: int


def paint(order: Order) -> Iterator[Painted]:
    """Not for poison: it would do here what it does to workers."""
    attempt = plan_attempt(order.id, order.request, _ENGINE.info)
    pictures = _ENGINE.render(attempt.specs, attempt.shape).pictures()
    for index, (spec, pixels) in enumerate(zip(attempt.specs, pictures, strict=True)):
        described = picture_metadata(
            job_id=order.id, spec=spec, shape=attempt.shape, info=_ENGINE.info
        )
        encoded = encode(pixels, order.request.format.value, described)
        key = image_key(order.id, index, encoded.extension)
        yield Painted(index=index, key=key, data=encoded.data, seed=spec.seed)


def audit_pictures(
    ledger: Ledger,
    orders: Mapping[str, Order],
    found: Mapping[str, JobStatus],
    store: ObjectStore,
) -> None:
    """Reads every object of the store once."""
    section = "objects"
    keys = list(store.list("jobs/"))
    with ThreadPoolExecutor(_READERS) as pool:
        objects = dict(zip(keys, pool.map(store.get, keys), strict=True))
    missing: list[str] = []
    other: list[str] = []
    expected: set[str] = set()
    for job_id, status in found.items():
        if status.state is State.SUCCEEDED and job_id in orders and not orders[job_id].poison:
            for key, verdict in _judged(orders[job_id], status, objects):
                expected.add(key)
                if verdict:
                    (missing if key not in objects else other).append(f"{key}: {verdict}")
    rest = objects.keys() - expected
    unfinished = {key for key in rest if _may_belong(key, orders, found)}
    ledger.note(section, "pictures of succeeded jobs", sum(not _is_sidecar(k) for k in expected))
    ledger.note(section, "sidecars", sum(_is_sidecar(key) for key in expected))
    ledger.note(section, "of jobs cancelled or failed after an upload", len(unfinished))
    ledger.never(section, "missing", missing)
    ledger.never(section, "other bytes, SHA-256 or pixels than the job's", other)
    ledger.never(section, "belonging to nothing", rest - unfinished)


def _judged(
    order: Order, status: JobStatus, objects: Mapping[str, bytes]
) -> Iterator[tuple[str, str]]:
    """Each key a succeeded job must have, with what is wrong there."""
    assert status.result is not None
    recorded = {image.index: image for image in status.result.images}
    painted = list(paint(order))
    if len(recorded) != len(painted):
        yield f"jobs/{order.id}/", f"{len(recorded)} pictures recorded, {len(painted)} ordered"
    for each in painted:
        image = recorded.get(each.index)
        yield each.key, _wrong_picture(each, image, objects.get(each.key))
        sidecar = metadata_key(order.id, each.index)
        yield sidecar, _wrong_sidecar(order, each, objects.get(sidecar))


def _wrong_picture(painted: Painted, image: ImageResult | None, data: bytes | None) -> str:
    if image is None or data is None:
        return "not there"
    if data != painted.data:
        return "foreign"
    recorded = (image.key, image.sha256, image.size, image.seed)
    sha256 = hashlib.sha256(data).hexdigest()
    return "" if recorded == (painted.key, sha256, len(data), painted.seed) else "recorded wrongly"


def _wrong_sidecar(order: Order, painted: Painted, data: bytes | None) -> str:
    if data is None:
        return "not there"
    document = json.loads(data)
    said = (document["job_id"], document["image_index"], document["image"]["sha256"])
    sha256 = hashlib.sha256(painted.data).hexdigest()
    return "" if said == (order.id, painted.index, sha256) else "of another picture"


def _may_belong(key: str, orders: Mapping[str, Order], found: Mapping[str, JobStatus]) -> bool:
    """To a job that did not succeed, at a place where it would have had a picture."""
    job_id = key.split("/")[1]
    if job_id not in orders or job_id not in found or found[job_id].state is State.SUCCEEDED:
        return False
    if orders[job_id].poison:
        return False
    places = {each.key for each in paint(orders[job_id])}
    count = orders[job_id].request.num_images_per_prompt
    return key in places | {metadata_key(job_id, index) for index in range(count)}


def _is_sidecar(key: str) -> bool:
    return key.endswith(".json")
