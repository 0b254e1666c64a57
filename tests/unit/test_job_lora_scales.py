"""The LoRA of a job: what a request accepts, how it is sent, and what is refused by an offer."""

from typing import Any

import pytest

from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.submit_errors import check_same_request
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.load_model import model_options

OPTIONS = LoraOption.parse_job_loras(["detail=/loras/d", "style=/loras/s"])


def _request(loras: Any) -> JobRequest:
    return JobRequest.parse({"prompt": "a", "seed": 1, "loras": loras})


def _offers(*names: str) -> dict[str, Offer]:
    options = [LoraOption(name=name, path=f"/loras/{name}") for name in names]
    offer = offer_of(FakeEngine(job_loras=options).info)
    return {DEFAULT_MODEL: offer, offer.model: offer}


@pytest.mark.parametrize(
    "loras",
    [
        [("style", 0.8), ("detail", 1)],
        (["detail", 1.0], ["style", 0.8]),
        "style:0.8,detail",
        " detail:1 , style:0.8",
    ],
)
def test_pairs_and_texts_in_any_order_are_the_same_job(loras: Any) -> None:
    request = _request(loras)
    assert request.loras == (("detail", 1.0), ("style", 0.8))
    stored = _request([("style", 0.8), ("detail", 1.0)]).model_dump_json()
    assert check_same_request("j", request, stored) == request


@pytest.mark.parametrize(
    ("loras", "message"),
    [
        (
            ["style"],
            r"loras=\['style'\]: must be pairs of a name and a scale, as in \[\('style', 0",
        ),
        (3, "loras=3: must be pairs"),
        ([("style", 10.5)], "must be less than or equal to 10"),
        ([("style", float("nan"))], "must be"),
        ("style:much", "the scale 'much' of 'style' must be a number from -10 to 10"),
        ("detail,style:10.5", "the scale '10.5' of 'style' must be a number from -10 to 10"),
        ("style:nan", "the scale 'nan' of 'style' must be a number from -10 to 10"),
        ("style:", "the scale '' of 'style' must be a number from -10 to 10"),
        ([("a b", 1)], "must be 1 to 128 letters"),
        ([("style", 1), ("style", 0.5)], "names 'style' twice; give each LoRA one scale"),
        ([(f"l{number}", 1) for number in range(17)], "must be at most 16"),
    ],
)
def test_other_values_are_refused(loras: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        _request(loras)
    assert refused.value.field == "loras"


def test_another_mixture_is_another_job() -> None:
    with pytest.raises(InvalidRequest, match="is in use already"):
        check_same_request("j", _request("style:0.8"), _request("style:0.7").model_dump_json())


def test_a_job_without_lora_is_sent_as_release_0_1_0_knows_it() -> None:
    empty: tuple[Any, ...] = ((), [], "")
    for nothing in empty:
        sent = pack(_request(nothing))
        assert sent["version"] == 1
        assert "loras" not in sent["request"]


def test_a_job_with_lora_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    request = _request("style:0.8")
    sent = pack(request)
    assert sent["version"] == 2
    assert sent["request"]["loras"] == [["style", 0.8]]
    assert unpack(sent, "j") == request
    assert unpack(sent["request"], "j") == request  # plain Celery


def test_an_unknown_name_is_refused_with_what_the_workers_hold() -> None:
    admit(_request("style:0.8"), _offers("style"))
    for held, known in ((["detail", "other"], "detail, other"), ([], "none")):
        sentence = (
            f"loras='style': is no LoRA that the workers of the model fake hold; they hold {known}$"
        )
        with pytest.raises(InvalidRequest, match=sentence):
            admit(_request("style:0.8"), _offers(*held))


def test_an_offer_of_an_older_worker_holds_none() -> None:
    text = _offers()[DEFAULT_MODEL].model_dump_json(exclude={"loras"})
    assert Offer.model_validate_json(text).loras == {}


def test_the_images_of_a_job_name_the_files_that_it_used() -> None:
    info = FakeEngine(job_loras=OPTIONS).info
    attempt = plan_attempt("j", _request("style:0.8"), info)
    [spec] = attempt.specs
    metadata = image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=info)
    digest = offer_of(info).loras["style"]
    assert digest.startswith("sha256:")
    assert metadata["job_loras"] == [{"name": "style", "digest": digest, "scale": 0.8}]
    [plain] = plan_attempt("j", _request(()), info).specs
    assert "job_loras" not in image_metadata(job_id="j", spec=plain, shape=attempt.shape, info=info)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("style", "'style' is no LoRA; write name=path, as in style=/loras/a"),
        ("style=", "'style=' is no LoRA"),
        ("style=a:0.8", "has a scale; write name=path, since each job gives its own"),
        ("my style=a", "the name 'my style' must be 1 to 128 letters"),
        ("style=a,style=b", "two files have the name 'style'"),
    ],
)
def test_the_setting_refuses_what_jobs_could_not_use(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match="JOB_LORA: .*" + sentence):
        WorkerSettings.load(job_lora=text)


def test_both_settings_take_several_files_separated_by_commas() -> None:
    settings = WorkerSettings.load(job_lora="a=/x/a,b=/x/b", lora="c=/x/c:0.5, d=/x/d")
    assert [(each.name, each.path) for each in model_options(settings).job_loras] == [
        ("a", "/x/a"),
        ("b", "/x/b"),
    ]
    assert [(each.name, each.scale) for each in model_options(settings).loras] == [
        ("c", 0.5),
        ("d", 1),
    ]
