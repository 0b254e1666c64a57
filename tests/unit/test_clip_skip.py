"""The `clip_skip` of a job: what a request accepts, how it is sent, and what an offer refuses."""

from typing import Any

import pytest

from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.submit_errors import check_same_request
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.metadata import image_metadata, infotext
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.plans import counted, plan_rows, planned_requests

OFFER = offer_of(FakeEngine().info)
OFFERS = {DEFAULT_MODEL: OFFER, OFFER.model: OFFER}


def _request(clip_skip: Any, **more: Any) -> JobRequest:
    return JobRequest.parse({"prompt": "a", "seed": 1, "clip_skip": clip_skip, **more})


@pytest.mark.parametrize(
    ("clip_skip", "limit"),
    [
        (0, "must be greater than or equal to 1"),
        (-1, "must be greater than or equal to 1"),
        (65, "must be less than or equal to 64"),
        (1.0, "must be a valid integer"),
        ("1", "must be a valid integer"),
        (True, "must be a valid integer"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_limit(clip_skip: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        _request(clip_skip)
    assert (refused.value.field, refused.value.value) == ("clip_skip", clip_skip)


def test_more_layers_than_the_model_has_are_refused_with_its_limit() -> None:
    admit(_request(12), OFFERS)
    with pytest.raises(
        InvalidRequest, match=r"^clip_skip=13: must be at most 12 with the model fake$"
    ):
        admit(_request(13), OFFERS)


def test_an_offer_of_an_older_worker_takes_no_clip_skip() -> None:
    older = Offer.model_validate_json(OFFER.model_dump_json(exclude={"max_clip_skip"}))
    admit(_request(None), {DEFAULT_MODEL: older})
    with pytest.raises(
        InvalidRequest, match=r"^clip_skip=1: is not a parameter of the model fake$"
    ):
        admit(_request(1), {DEFAULT_MODEL: older})


def test_only_a_job_with_clip_skip_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    for more, version in (({}, 1), ({"loras": "style"}, 2)):
        sent = pack(_request(None, **more))
        assert sent["version"] == version
        assert "clip_skip" not in sent["request"]
    for more in ({}, {"loras": "style"}):
        request = _request(2, **more)
        sent = pack(request)
        assert (sent["version"], sent["request"]["clip_skip"]) == (3, 2)
        assert unpack(sent, "j") == request
        assert unpack(sent["request"], "j") == request  # plain Celery


def test_another_clip_skip_is_another_job() -> None:
    assert check_same_request("j", _request(1), _request(1).model_dump_json()) == _request(1)
    with pytest.raises(InvalidRequest, match="is in use already"):
        check_same_request("j", _request(1), _request(2).model_dump_json())


def test_an_image_says_how_many_layers_it_skipped() -> None:
    info = FakeEngine().info
    attempt = plan_attempt("j", _request(1), info)
    [spec] = attempt.specs
    metadata = image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=info)
    assert metadata["clip_skip"] == 1
    # The web UI counts from 1: its 2 uses the penultimate layer.
    assert "Size: 64x64, Clip skip: 2, Model: fake" in infotext(metadata)
    [plain] = plan_attempt("j", _request(None), info).specs
    without = image_metadata(job_id="j", spec=plain, shape=attempt.shape, info=info)
    assert "clip_skip" not in without
    assert "Clip skip" not in infotext(without)


def _skips(store: MemoryStore, plan: Plan) -> list[int | None]:
    return [request.clip_skip for request in planned_requests(store, plan)]


def test_rows_and_whole_datasets_may_skip_layers() -> None:
    store = MemoryStore()
    rows = [{"prompt": "a", "clip_skip": "1"}, {"prompt": "b", "clip_skip": ""}, {"prompt": "c"}]
    plan = plan_rows(rows, store, OFFERS)
    assert (_skips(store, plan), counted(plan, "clip_skip")) == ([1, None, None], 1)
    store = MemoryStore()
    plan = plan_rows(rows, store, OFFERS, clip_skip=2)
    assert (_skips(store, plan), counted(plan, "clip_skip")) == ([1, 2, 2], 3)


def test_a_row_that_skips_too_many_layers_is_rejected() -> None:
    store = MemoryStore()
    plan = plan_rows([{"prompt": "a", "clip_skip": 13}, {"prompt": "b"}], store, OFFERS)
    assert (plan.rows, plan.rejected) == (1, 1)
    [rejected] = read_rejected(store)
    assert rejected["field"] == "clip_skip"
    assert "must be at most 12 with the model fake" in str(rejected["reason"])


def test_only_a_plan_that_skips_layers_has_messages_that_older_releases_refuse() -> None:
    for clip_skip, version in ((1, 3), (None, 1)):
        plan = plan_rows([{"prompt": "a", "clip_skip": clip_skip}], MemoryStore(), OFFERS)
        assert {each.version for each in shards_to_send(plan, plan.shards)} == {version}
        assert (b"clip_skip" in plan.dump()) is (version == 3)
