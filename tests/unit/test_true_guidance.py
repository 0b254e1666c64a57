"""`true_cfg_scale`: accepted, sent, refused, counted and recorded."""

from dataclasses import replace
from typing import Any, Final

import pytest

from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_types import GIVEN_EMPTY
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.plans import counted, plan_rows, planned_requests

INFO: Final = FakeEngine().info
OFFER: Final = offer_of(INFO)
OFFERS: Final = {DEFAULT_MODEL: OFFER, OFFER.model: OFFER}


def _request(**parameters: Any) -> JobRequest:
    return JobRequest.parse({"prompt": "a", "seed": 1, **parameters})


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (50.1, "must be less than or equal to 50"),
        (0, "must be greater than or equal to 1"),
        (float("nan"), "must be a finite number"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_limit(value: float, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        _request(true_cfg_scale=value)
    assert refused.value.field == "true_cfg_scale"


def test_a_model_without_it_and_an_older_worker_refuse_it_in_one_sentence() -> None:
    admit(_request(true_cfg_scale=2), OFFERS)
    older = Offer.model_validate_json(OFFER.model_dump_json(exclude={"true_guidance"}))
    with pytest.raises(InvalidRequest) as refused:
        admit(_request(true_cfg_scale=2), {DEFAULT_MODEL: older})
    assert str(refused.value) == "true_cfg_scale=2.0: is not a parameter of the model fake"
    for neutral in (None, 1):
        admit(_request(true_cfg_scale=neutral), {DEFAULT_MODEL: older})


def test_only_a_job_with_it_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    for neutral in (None, 1):
        sent = pack(_request(true_cfg_scale=neutral))
        assert sent["version"] == 1
        assert "true_cfg_scale" not in sent["request"]
    request = _request(true_cfg_scale=4)
    sent = pack(request)
    assert (sent["version"], sent["request"]["true_cfg_scale"]) == (11, 4.0)
    assert unpack(sent, "j") == request


def test_an_image_says_what_it_had() -> None:
    for given, expected in ((4, 4.0), (1, None)):
        attempt = plan_attempt("j", _request(true_cfg_scale=given), INFO)
        [spec] = attempt.specs
        metadata = image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=INFO)
        assert metadata.get("true_cfg_scale") == expected


def test_rows_and_whole_datasets_may_have_it() -> None:
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "true_cfg_scale": "4.5", "negative_prompt": "b"},
        {"prompt": "b", "true_cfg_scale": ""},
        {"prompt": "c", "true_cfg_scale": 1},
    ]
    for scale, expected, count in ((None, [4.5, None, 1.0], 1), (2, [4.5, 2.0, 1.0], 2)):
        store = MemoryStore()
        plan = plan_rows(rows, store, OFFERS, true_cfg_scale=scale)
        requests = planned_requests(store, plan)
        assert [request.true_cfg_scale for request in requests] == expected
        assert counted(plan, "true_cfg_scale") == count
        assert {each.version for each in shards_to_send(plan, plan.shards)} == {10}


def test_only_an_image_with_a_negative_prompt_is_guided_by_it() -> None:
    spec = ImageSpec(prompt="a", num_inference_steps=1, guidance_scale=3.5, true_cfg_scale=2.0)
    for negative, scale, is_guided in (
        ("", 2.0, False),
        (GIVEN_EMPTY, 2.0, True),
        ("b", 2.0, True),
        ("b", 1.0, False),
    ):
        given = replace(spec, negative_prompt=negative, true_cfg_scale=scale)
        assert given.is_guided(INFO) is is_guided
    assert spec.is_guided(replace(INFO, true_guidance=False))
