"""`prompt_weighting` of a job: its syntax, how it is sent, and what an offer refuses."""

from typing import Any

import pytest

from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.bulk.file_layout import plan_key
from imagefleet.shared.bulk.plan import Plan, RowParameters
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.prompt_weights import pieces_of
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.row_conversion import encode_samples, is_sample_of, row_work
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.plans import Rows, plan_rows, planned_requests, planned_rows

INFO = FakeEngine(prompt_chunks=2).info
OFFER = offer_of(INFO)
OFFERS = {DEFAULT_MODEL: OFFER, OFFER.model: OFFER}


def _request(prompt: str = "a (red:1.3) star", *, weighting: Any = True, **more: Any) -> JobRequest:
    return JobRequest.parse({"prompt": prompt, "seed": 1, "prompt_weighting": weighting, **more})


@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("a star", [("a star", 1)]),
        ("", [("", 1)]),
        ("()", [("", 1)]),
        ("a (red) star", [("a ", 1), ("red", 1.1), (" star", 1)]),
        ("a [red] star", [("a ", 1), ("red", 1 / 1.1), (" star", 1)]),
        ("a (red:1.5)", [("a ", 1), ("red", 1.5)]),
        ("(red : .5 )", [("red ", 0.5)]),
        ("(red:-2)", [("red", -2)]),
        ("((red))", [("red", 1.21)]),
        ("((red:1.5) star)", [("red", 1.65), (" star", 1.1)]),
        ("(a)(b)", [("ab", 1.1)]),
        ("(a [b) c]", [("a ", 1.1), ("b", 1), (" c", 1 / 1.1)]),
        ("(never closed", [("never closed", 1.1)]),
        ("never opened) ] :2)", [("never opened) ] :2)", 1)]),
        (r"a \(b\) \[c\] \\ \d", [("a (b) [c] \\ \\d", 1)]),
        ("12:30 (a:b)", [("12:30 ", 1), ("a:b", 1.1)]),
        ("[a:1.5]", [("a:1.5", 1 / 1.1)]),
    ],
)
def test_brackets_weigh_what_they_enclose(prompt: str, pieces: list[tuple[str, float]]) -> None:
    found = pieces_of(prompt, weighting=True)
    assert [piece.text for piece in found] == [text for text, _ in pieces]
    assert [piece.weight for piece in found] == pytest.approx([weight for _, weight in pieces])
    assert pieces_of(prompt, weighting=False) == ((prompt, 1.0),)


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("(red:11)", r"gives 'red' the weight 11; weights must be from -10 to 10"),
        ("(red:-11)", r"the weight -11"),
        ("(red:" + "9" * 400 + ")", r"the weight inf"),
        ("((red:0):" + "9" * 400 + ")", r"the weight nan"),
        ("(" * 25 + "red", r"the weight 10\.8"),
        ("[" * 13 + "(" * 13 + "red", r"opens more than 25 brackets within each other"),
    ],
)
def test_weights_beyond_the_limit_are_refused(field: str, text: str, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        _request(**{"prompt": "a", field: text})
    assert refused.value.field == field
    assert _request(**{"prompt": "a", field: text}, weighting=False).prompt_weighting is False


@pytest.mark.parametrize("weighting", [1, "true", "", [], 0.0])
def test_other_values_than_true_and_false_are_refused(weighting: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a valid boolean") as refused:
        _request(weighting=weighting)
    assert refused.value.field == "prompt_weighting"


def test_workers_without_prompt_chunks_take_no_such_jobs() -> None:
    admit(_request(), OFFERS)
    without = offer_of(FakeEngine().info)
    older = Offer.model_validate_json(OFFER.model_dump_json(exclude={"prompt_chunks"}))
    for offer in (without, older):
        admit(_request(weighting=False), {DEFAULT_MODEL: offer})
        with pytest.raises(InvalidRequest, match=r"^prompt_weighting=True: needs workers with"):
            admit(_request(), {DEFAULT_MODEL: offer})


def test_only_a_job_with_weights_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    for more, version in (({}, 1), ({"loras": "style"}, 2), ({"clip_skip": 1}, 3)):
        plain = pack(_request(weighting=False, **more))
        assert plain["version"] == version
        assert "prompt_weighting" not in plain["request"]
        request = _request(**more)
        sent = pack(request)
        assert (sent["version"], sent["request"]["prompt_weighting"]) == (5, True)
        assert unpack(sent, "j") == request
        assert unpack(sent["request"], "j") == request  # plain Celery


def test_an_image_says_that_its_prompt_was_weighed() -> None:
    attempt = plan_attempt("j", _request(), INFO)
    [spec] = attempt.specs
    metadata = image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=INFO)
    assert (metadata["prompt"], metadata["prompt_weighting"]) == ("a (red:1.3) star", True)
    [plain] = plan_attempt("j", _request(weighting=False), INFO).specs
    without = image_metadata(job_id="j", spec=plain, shape=attempt.shape, info=INFO)
    assert "prompt_weighting" not in without


def test_a_prompt_beyond_the_chunks_is_marked_as_truncated() -> None:
    engine = FakeEngine(prompt_chunks=2)
    for words, weighting, truncated in (
        (75, False, False),
        (76, False, True),
        (150, True, False),
        (151, True, True),
    ):
        request = _request(" ".join(["red"] * words), weighting=weighting)
        [spec] = plan_attempt("j", request, INFO).specs
        assert engine.truncated(spec) is truncated, (words, weighting)


def _weighed(store: MemoryStore, plan: Plan) -> list[bool]:
    return [request.prompt_weighting for request in planned_requests(store, plan)]


def test_rows_and_whole_datasets_may_weigh_words() -> None:
    rows: Rows = [
        {"prompt": "(a)", "prompt_weighting": "True"},
        {"prompt": "(b)", "prompt_weighting": False},
        {"prompt": "(c)", "prompt_weighting": ""},
    ]
    for parameters, weighed in (({}, [True, False, False]), ({"prompt_weighting": True}, None)):
        store = MemoryStore()
        plan = plan_rows(rows, store, OFFERS, **parameters)
        expected = weighed or [True, False, True]
        assert (_weighed(store, plan), plan.weighted_prompts) == (expected, sum(expected))
        assert {each.version for each in shards_to_send(plan, plan.shards)} == {4}


def test_a_plan_without_weights_is_one_that_older_releases_read() -> None:
    store = MemoryStore()
    plan = plan_rows([{"prompt": "(a)", "prompt_weighting": False}, "(b)"], store, OFFERS)
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {1}
    assert b"weight" not in plan.dump()
    assert all(b"weight" not in store.get(plan_key(shard.name)) for shard in plan.shards)


def test_rows_with_wrong_weights_or_values_are_rejected() -> None:
    store = MemoryStore()
    rows: list[Any] = [
        {"prompt": "(a:99)"},
        "(b:99)",
        {"prompt": "c", "prompt_weighting": "perhaps"},
        "d",
    ]
    plan = plan_rows(rows, store, OFFERS, prompt_weighting=True)
    assert (plan.rows, plan.rejected) == (1, 3)
    reasons = [str(rejected["reason"]) for rejected in read_rejected(store)]
    assert ["from -10 to 10" in reason for reason in reasons] == [True, True, False]
    assert "must be a valid boolean" in reasons[2]


def test_a_sample_without_weights_is_generated_again_with_them() -> None:
    store, engine = MemoryStore(), FakeEngine(prompt_chunks=2)
    plan = plan_rows([{"prompt": "(a)", "seed": 1}], store, OFFERS, prompt_weighting=True)
    [row] = planned_rows(store, plan)
    weighed = plan.request(plan.shards[0], row)
    plain = weighed.model_copy(update={"prompt_weighting": False})
    for made, other in ((weighed, plain), (plain, weighed)):
        work = row_work(row.row, made, engine.info, OFFERS)
        images = engine.start_batch(work.specs, work.shape).images()
        [sample] = encode_samples(work, row, made, list(images), engine)
        assert is_sample_of(sample, work, made, engine.info)
        other_work = row_work(row.row, other, engine.info, OFFERS)
        assert not is_sample_of(sample, other_work, other, engine.info)


def test_rows_that_differ_in_weighting_only_are_no_duplicates() -> None:
    rows: Rows = [
        {"prompt": "(a)"},
        {"prompt": "(a)", "prompt_weighting": True},
        {"prompt": "(a)", "prompt_weighting": True},
        {"prompt": "(a)", "prompt_weighting": False},
    ]
    plan = plan_rows(rows, MemoryStore(), OFFERS, dedupe=True)
    assert (plan.rows, plan.duplicates) == (2, 2)


def test_the_option_of_a_whole_dataset_is_true_or_false() -> None:
    for wrong in ("yes", 1, 0.0):
        with pytest.raises(ValueError, match="boolean"):
            RowParameters(prompt_weighting=wrong)
