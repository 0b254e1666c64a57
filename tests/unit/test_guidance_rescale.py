"""The `guidance_rescale` of a job: what is accepted, how it is sent, what an offer refuses."""

from typing import Any

import pytest

from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.plans import counted, plan_rows, planned_requests

OFFER = offer_of(FakeEngine().info)
OFFERS = {DEFAULT_MODEL: OFFER, OFFER.model: OFFER}
WITHOUT = {DEFAULT_MODEL: OFFER.model_copy(update={"rescales_guidance": False})}


def _request(share: Any, **more: Any) -> JobRequest:
    return JobRequest.parse({"prompt": "a", "seed": 1, "guidance_rescale": share, **more})


@pytest.mark.parametrize(
    ("share", "limit"),
    [
        (1.01, "must be less than or equal to 1"),
        (-0.1, "must be greater than or equal to 0"),
        (float("nan"), "must be a finite number"),
        ("much", "must be a valid number"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_limit(share: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        _request(share)
    assert refused.value.field == "guidance_rescale"


def test_a_model_without_it_and_an_older_worker_refuse_it() -> None:
    admit(_request(0.7), OFFERS)
    older = Offer.model_validate_json(OFFER.model_dump_json(exclude={"rescales_guidance"}))
    for offers in (WITHOUT, {DEFAULT_MODEL: older}):
        for none in (None, 0.0):
            admit(_request(none), offers)
        with pytest.raises(InvalidRequest, match=r"^guidance_rescale=0.7: is not a parameter of"):
            admit(_request(0.7), offers)


def test_only_a_job_with_it_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    for none in (None, 0.0):
        sent = pack(_request(none))
        assert sent["version"] == 1
        assert "guidance_rescale" not in sent["request"]
    for more in ({}, {"prompt_weighting": True}):
        request = _request(0.7, **more)
        sent = pack(request)
        assert (sent["version"], sent["request"]["guidance_rescale"]) == (6, 0.7)
        assert unpack(sent, "j") == request
        assert unpack(sent["request"], "j") == request  # plain Celery


def test_an_image_says_how_far_its_guidance_was_rescaled() -> None:
    info = FakeEngine().info
    for share, expected in ((0.7, {"guidance_rescale": 0.7}), (0.0, {}), (None, {})):
        attempt = plan_attempt("j", _request(share), info)
        [spec] = attempt.specs
        metadata = image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=info)
        assert {name: metadata[name] for name in metadata if name == "guidance_rescale"} == expected


def test_rows_and_whole_datasets_may_have_it() -> None:
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "guidance_rescale": "0.5"},
        {"prompt": "b", "guidance_rescale": ""},
        {"prompt": "c", "guidance_rescale": 0},
    ]
    for share, expected, count in ((None, [0.5, None, 0.0], 1), (0.7, [0.5, 0.7, 0.0], 2)):
        store = MemoryStore()
        plan = plan_rows(rows, store, OFFERS, guidance_rescale=share)
        shares = [request.guidance_rescale for request in planned_requests(store, plan)]
        assert (shares, counted(plan, "guidance_rescale")) == (expected, count)
        assert {each.version for each in shards_to_send(plan, plan.shards)} == {5}


def test_a_plain_text_of_a_dataset_that_has_it_counts_for_the_version() -> None:
    plan = plan_rows(["a", "b"], MemoryStore(), OFFERS, guidance_rescale=0.7)
    assert counted(plan, "guidance_rescale") == 2
    plan = plan_rows(["a", "b"], MemoryStore(), OFFERS, guidance_rescale=0.0)
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {1}
    assert b"rescaled_guidances" not in plan.dump()


def test_a_row_that_the_model_cannot_make_is_rejected() -> None:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [{"prompt": "a", "guidance_rescale": 0.7}, {"prompt": "b"}]
    plan = plan_rows(rows, store, WITHOUT)
    assert (plan.rows, plan.rejected) == (1, 1)
    [rejected] = read_rejected(store)
    assert rejected["field"] == "guidance_rescale"
