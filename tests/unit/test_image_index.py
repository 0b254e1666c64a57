"""A job with `image_index` makes one of several images: what is accepted, sent, planned, stored."""

import json
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from imagefleet.shared.bulk.file_layout import plan_key
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest, PlanDamaged
from imagefleet.shared.jobs.celery_message import headers_of, job_message
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.testing import FakeFleet
from imagefleet.worker.bulk.row_conversion import (
    encode_samples,
    is_sample_of,
    row_work,
    sample_keys,
)
from imagefleet.worker.engine.fake.fake_batch import fake_image
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.metadata import image_metadata, infotext
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.support.plans import counted, plan_rows, planned_rows

TIMEOUT_S = 60


def _request(index: Any, images: int = 8, **more: Any) -> JobRequest:
    parameters = {"num_images_per_prompt": images, "image_index": index, **more}
    return JobRequest.parse({"prompt": "a star", "seed": 7, **parameters})


@pytest.mark.parametrize(
    ("index", "limit"),
    [
        (8, "must be below num_images_per_prompt=8"),
        (64, "must be less than 64"),
        (-1, "must be greater than or equal to 0"),
        (1.0, "must be a valid integer"),
        ("1", "must be a valid integer"),
        (True, "must be a valid integer"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_limit(index: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        _request(index)
    assert refused.value.field == "image_index"


def test_the_first_image_is_one_of_a_single_image() -> None:
    assert list(JobRequest(prompt="a", image_index=0).images) == [0]
    with pytest.raises(InvalidRequest, match="must be below num_images_per_prompt=1"):
        JobRequest.parse({"prompt": "a", "image_index": 1})


def test_only_a_job_with_it_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    without = pack(_request(None))
    assert without["version"] == 1
    assert "image_index" not in without["request"]
    for index in (0, 3):
        request = _request(index, guidance_rescale=0.7)
        sent = pack(request)
        assert (sent["version"], sent["request"]["image_index"]) == (7, index)
        assert unpack(sent, "j") == request


def test_it_counts_as_one_image_wherever_images_are_counted() -> None:
    for request, images in ((_request(3), 1), (_request(None), 8)):
        sent = job_message("j", request, "q")
        assert headers_of(sent).get("images", 1) == images
        assert len(plan_attempt("j", request, FakeEngine().info).specs) == images


def test_its_image_is_that_of_the_job_which_makes_all() -> None:
    info = FakeEngine().info
    every = plan_attempt("j", _request(None), info).specs
    for index in range(8):
        [spec] = plan_attempt("j", _request(index), info).specs
        assert spec == every[index]
        assert repr(spec) == repr(every[index])


def test_the_metadata_say_which_image_of_how_many_it_is() -> None:
    info = FakeEngine().info
    for request, index, images in (
        (_request(3), 3, 8),
        (_request(None, 2), 1, 2),
        (_request(0, 1), 0, None),
        (_request(None, 1), 0, None),
    ):
        attempt = plan_attempt("j", request, info)
        metadata = image_metadata(
            job_id="j", spec=attempt.specs[-1], shape=attempt.shape, info=info
        )
        assert metadata["image_index"] == index
        assert metadata.get("num_images_per_prompt") == images
        text = infotext(metadata)
        assert (f"image {index + 1} of {images}" in text) is (images is not None)
        assert ("Batch" in text) is (images is not None)


def test_a_job_stores_the_image_under_its_index_with_the_pixels_of_the_whole_job() -> None:
    with FakeFleet() as fleet:
        common: dict[str, Any] = {"seed": 7, "num_images_per_prompt": 8}
        every = fleet.client.submit("a star", **common).result(TIMEOUT_S).images
        job = fleet.client.submit("a star", **common, image_index=3, id="one")
        [image] = job.result(TIMEOUT_S).images
        assert (image.index, image.key) == (3, "jobs/one/3.png")
        assert image.file_name == "one-3.png"
        assert image.pixel_sha256 == every[3].pixel_sha256
        assert len({each.pixel_sha256 for each in every}) == 8
        with Image.open(BytesIO(image.read())) as opened:
            assert "Batch: image 4 of 8" in opened.info["parameters"]
            stored = json.loads(opened.info["imagefleet"])
        assert (stored["image_index"], stored["num_images_per_prompt"]) == (3, 8)


ROWS: list[str | dict[str, Any]] = [
    {"prompt": "a", "num_images_per_prompt": "4", "image_index": "2"},
    {"prompt": "b", "num_images_per_prompt": 2},
    {"prompt": "c", "num_images_per_prompt": 4, "image_index": 0},
    {"prompt": "d", "image_index": ""},
    {"prompt": "e", "num_images_per_prompt": 2, "image_index": 2},
]


def test_rows_of_datasets_may_have_it() -> None:
    store = MemoryStore()
    plan = plan_rows(ROWS, store)
    assert (plan.rows, plan.rejected, plan.samples) == (4, 1, 1 + 2 + 1 + 1)
    assert counted(plan, "image_index") == 2
    keys = [sample_keys(plan, row) for row in planned_rows(store, plan)]
    assert keys == [
        ["000000000-02"],
        ["000000001-00", "000000001-01"],
        ["000000002-00"],
        ["000000003-00"],
    ]
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {7}


def test_a_run_may_have_it_for_all_rows_and_a_row_another_one() -> None:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = ["a", {"prompt": "b", "image_index": 1}]
    plan = plan_rows(rows, store, num_images_per_prompt=4, image_index=3)
    assert (counted(plan, "image_index"), plan.samples) == (2, 2)
    keys = [sample_keys(plan, row) for row in planned_rows(store, plan)]
    assert keys == [["000000000-03"], ["000000001-01"]]
    with pytest.raises(InvalidRequest, match="image_index=4: must be below"):
        plan_rows(rows, MemoryStore(), num_images_per_prompt=4, image_index=4)


def test_a_dataset_without_it_is_planned_as_before() -> None:
    store = MemoryStore()
    plan = plan_rows(ROWS[1:2], store)
    assert b"single_images" not in plan.dump()
    assert b"image_index" not in store.get(plan_key(plan.shards[0].name))
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {1}


def test_a_worker_that_does_not_know_the_count_refuses_the_plan() -> None:
    """So does a worker of this release with a count that only the next one knows."""
    store = MemoryStore()
    dumped = plan_rows(ROWS[:1], store).dump()
    assert b'"single_images":1' in dumped
    with pytest.raises(PlanDamaged):
        Plan.load(dumped.replace(b"single_images", b"double_images"))


def test_a_sample_of_the_whole_row_is_used_again_for_the_row_with_one_image() -> None:
    engine, store = FakeEngine(), MemoryStore()
    rows: list[str | dict[str, Any]] = [{"prompt": "a", "num_images_per_prompt": 4}]
    plan = plan_rows(rows, store)
    [row] = planned_rows(store, plan)
    whole, one = (plan.request(plan.shards[0], row), _row_request(2))
    works = [row_work(row.row, request, engine.info, {}) for request in (whole, one)]
    images = [fake_image(spec, works[0].shape) for spec in works[0].specs]
    samples = encode_samples(works[0], row, whole, images, engine)
    used = [sample.key for sample in samples if is_sample_of(sample, works[1], one, engine.info)]
    assert used == ["000000000-02"]
    assert all(is_sample_of(sample, works[0], whole, engine.info) for sample in samples)
    [single] = encode_samples(works[1], row, one, images[2:3], engine)
    assert (single.key, single.image) == (samples[2].key, samples[2].image)


def _row_request(index: int) -> JobRequest:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "num_images_per_prompt": 4, "image_index": index}
    ]
    plan = plan_rows(rows, store)
    [row] = planned_rows(store, plan)
    return plan.request(plan.shards[0], row)
