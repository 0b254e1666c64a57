"""`cfg_normalization` and `cfg_truncation`: accepted, sent, refused, counted and recorded."""

from dataclasses import replace
from typing import Any, Final

import numpy as np
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
from imagefleet.worker.engine.schedulers.coefficients import COLUMNS, TIMESTEP, CoefficientTable
from imagefleet.worker.engine.schedulers.noise_levels import NoiseLevel
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.plans import counted, plan_rows, planned_requests

OFFER: Final = offer_of(FakeEngine().info)
OFFERS: Final = {DEFAULT_MODEL: OFFER, OFFER.model: OFFER}
LIMITS: Final = {"cfg_normalization": 1.0, "cfg_truncation": 0.4}
NEUTRAL: Final = {"cfg_normalization": (None, 0, False), "cfg_truncation": (None, 1)}


def _request(**parameters: Any) -> JobRequest:
    return JobRequest.parse({"prompt": "a", "seed": 1, **parameters})


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("cfg_normalization", 50.1, "must be less than or equal to 50"),
        ("cfg_normalization", -1, "must be greater than or equal to 0"),
        ("cfg_truncation", 1.01, "must be less than or equal to 1"),
        ("cfg_truncation", -0.1, "must be greater than or equal to 0"),
        ("cfg_truncation", float("nan"), "must be a finite number"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_limit(
    name: str, value: float, limit: str
) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        _request(**{name: value})
    assert refused.value.field == name


def test_true_stands_for_the_norm_of_the_output_with_the_prompt_as_in_diffusers() -> None:
    assert _request(cfg_normalization=True).cfg_normalization == 1.0


@pytest.mark.parametrize("name", LIMITS)
def test_a_model_without_it_and_an_older_worker_refuse_it_in_one_sentence(name: str) -> None:
    request = _request(**{name: LIMITS[name]})
    admit(request, OFFERS)
    older = Offer.model_validate_json(OFFER.model_dump_json(exclude={"limits_guidance"}))
    with pytest.raises(InvalidRequest) as refused:
        admit(request, {DEFAULT_MODEL: older})
    assert str(refused.value) == f"{name}={LIMITS[name]}: is not a parameter of the model fake"
    for neutral in NEUTRAL[name]:
        admit(_request(**{name: neutral}), {DEFAULT_MODEL: older})


@pytest.mark.parametrize("name", LIMITS)
def test_only_a_job_with_it_is_sent_as_a_version_that_older_workers_do_not_read(name: str) -> None:
    for neutral in NEUTRAL[name]:
        sent = pack(_request(**{name: neutral}))
        assert sent["version"] == 1
        assert name not in sent["request"]
    request = _request(**{name: LIMITS[name]})
    sent = pack(request)
    assert (sent["version"], sent["request"][name]) == (9, LIMITS[name])
    assert unpack(sent, "j") == request


def test_an_image_says_how_its_guidance_was_limited() -> None:
    info = FakeEngine().info
    for given, expected in ((LIMITS, LIMITS), ({"cfg_normalization": 0, "cfg_truncation": 1}, {})):
        attempt = plan_attempt("j", _request(**given), info)
        [spec] = attempt.specs
        metadata = image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=info)
        assert {name: metadata[name] for name in LIMITS if name in metadata} == expected


def test_rows_and_whole_datasets_may_have_them() -> None:
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "cfg_truncation": "0.5"},
        {"prompt": "b", "cfg_truncation": "", "cfg_normalization": True},
        {"prompt": "c", "cfg_truncation": 1},
    ]
    for share, expected, count in ((None, [0.5, None, 1.0], 1), (0.7, [0.5, 0.7, 1.0], 2)):
        store = MemoryStore()
        plan = plan_rows(rows, store, OFFERS, cfg_truncation=share)
        requests = planned_requests(store, plan)
        assert [request.cfg_truncation for request in requests] == expected
        assert [request.cfg_normalization for request in requests] == [None, 1.0, None]
        assert counted(plan, "cfg_truncation") == count
        assert counted(plan, "cfg_normalization") == 1
        assert {each.version for each in shards_to_send(plan, plan.shards)} == {8}


def test_a_row_that_the_model_cannot_make_is_rejected() -> None:
    store = MemoryStore()
    info = replace(FakeEngine().info, limits_guidance=False)
    rows: list[str | dict[str, Any]] = [{"prompt": "a", **LIMITS}, {"prompt": "b"}]
    plan = plan_rows(rows, store, {DEFAULT_MODEL: offer_of(info)})
    assert (plan.rows, plan.rejected) == (1, 1)
    [rejected] = read_rejected(store)
    assert rejected["field"] in LIMITS


@pytest.mark.parametrize(
    ("truncation", "calls"),
    [(0.0, 1), (0.09, 1), (0.1, 1), (0.1001, 2), (0.25, 3), (0.4, 3), (0.5, 4), (1.0, 4)],
)
def test_guidance_ends_where_the_way_to_the_image_exceeds_the_truncation(
    truncation: float, calls: int
) -> None:
    """diffusers compares (1000 - t) / 1000 in float32, where 0.1 is a little above 0.1."""
    rows = np.zeros((4, COLUMNS), np.float32)
    rows[:, TIMESTEP] = [1000, 900, 750, 500]
    table = CoefficientTable(rows, NoiseLevel(alpha=0.0, sigma=1.0))
    assert table.guided_calls(truncation) == calls
    rows[:, TIMESTEP] = [900, 900, 750, 500]
    assert CoefficientTable(rows, table.start).guided_calls(0.05) == 0


def test_without_a_truncation_all_calls_have_guidance() -> None:
    """EDM (Karras et al. 2022) has log(sigma) / 4 in place of the timestep."""
    rows = np.zeros((5, COLUMNS), np.float32)
    rows[:, TIMESTEP] = np.log([80, 5, 1.2, 0.7, 0.002]) / 4
    assert CoefficientTable(rows, NoiseLevel(alpha=0.0, sigma=1.0)).guided_calls(1.0) == 5
