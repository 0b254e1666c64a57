"""Predictions: headers, names of models, places of events, and addresses that workers sign."""

import pytest

from imagefleet.producer.gateway.predictions.event_place import EventPlace
from imagefleet.producer.gateway.predictions.headers import cancel_after_s, wait_s
from imagefleet.producer.gateway.predictions.models import FleetModels
from imagefleet.producer.gateway.predictions.stream import tell_ours, tell_theirs
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.prediction import PREDICTION_STATES, logs_of
from imagefleet.shared.jobs.prediction_address import PredictionAddress
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus


@pytest.mark.parametrize(
    ("preference", "seconds"),
    [
        ("", 0),
        ("wait", 60),
        ("wait=1", 1),
        ('respond-async, Wait = "60"', 60),
        ("return=minimal; wait=9", 0),
        ("waiting=9", 0),
    ],
)
def test_prefer_says_how_long_to_wait(preference: str, seconds: int) -> None:
    assert wait_s({"prefer": preference}) == seconds


@pytest.mark.parametrize(
    "preference", ["wait=0", "wait=61", "wait=-1", "wait=1.5", "wait=", "wait=١"]
)
def test_a_wait_beyond_its_limits_is_refused(preference: str) -> None:
    with pytest.raises(Problem, match="must be wait=1 to wait=60"):
        wait_s({"prefer": preference})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("30s", 30), ("1m", 60), ("1h30m45s", 5_445), ("168h", 604_800)],
)
def test_cancel_after_is_a_duration(text: str, seconds: int) -> None:
    assert cancel_after_s({"cancel-after": text}) == seconds
    assert cancel_after_s({}) is None


@pytest.mark.parametrize("text", ["", "0", "x", "-1s", "1.5m", "m", "169h", "1s1m", "1 m"])
def test_another_cancel_after_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="Cancel-After"):
        cancel_after_s({"cancel-after": text})


def _offer(model: str, digest: str) -> Offer:
    return Offer(
        model=model,
        digest=f"sha256:{digest}",
        shapes=((64, 64),),
        schedulers=("ddim",),
        max_num_inference_steps=20,
        num_inference_steps=4,
        guidance_scale=7.5,
        scheduler="ddim",
    )


@pytest.mark.parametrize(
    ("version", "model"),
    [
        ("sd", "sd"),
        ("anybody/sd", "sd"),
        ("org/xl", "org/xl"),
        ("best", "org/xl"),
        ("anybody/best", "org/xl"),
        ("anybody/sd:aa", "sd"),
        ("sd:sha256:aa", "sd"),
        ("bb", "org/xl"),
        ("sha256:bb", "org/xl"),
        ("default", None),
        ("anybody/default", None),
        ("org/other", "other"),
    ],
)
def test_a_version_names_a_model(version: str, model: str | None) -> None:
    offers = {"sd": _offer("sd", "aa"), "org/xl": _offer("org/xl", "bb")}
    offers["default"] = offers["sd"]
    models = FleetModels(offers=offers, aliases={"best": "org/xl"})
    assert models.of_version(version) == model
    with pytest.raises(Problem, match="is not served; that of sd is aa"):
        models.of_version("anybody/sd:bc")


def test_places_follow_the_way_of_a_job() -> None:
    way = [
        EventPlace(0, 0),
        EventPlace.queued(0),
        EventPlace(1, 0),
        EventPlace(1, 2),
        EventPlace(1, 2, 1),
        EventPlace.queued(1),
        EventPlace(2, 0),
        EventPlace.ended(1),
        EventPlace.ended(2),
    ]
    assert sorted(way) == way
    assert [EventPlace.parse(str(each)) for each in way] == way
    for text in (None, "", "x", "1.2", "1.2.3.4", "-1.0.0", "1" * 99):
        assert EventPlace.parse(text) == way[0]


def _status(state: State, **fields: object) -> JobStatus:
    given = {"id": "a", "request": JobRequest(prompt="a"), "submitted_at": 0.0, **fields}
    return JobStatus.model_validate({"state": state, **given})


@pytest.mark.parametrize("state", list(State))
def test_no_state_is_shown_as_aborted(state: State) -> None:
    assert PREDICTION_STATES[state] in {
        "starting",
        "processing",
        "succeeded",
        "failed",
        "canceled",
    }
    way = {} if state is State.QUEUED else {"step": 3, "steps": 8, "started_at": 1.0}
    status = _status(state, deliveries=1, **way)
    shown = {"output": None, "error": None}
    for tell in (tell_ours, tell_theirs):
        places = [event.place for event in tell(status, lambda _: shown)]
        assert sorted(set(places)) == places
    assert ("37%" in logs_of(status)) == (state is not State.QUEUED)


def test_an_address_of_a_prediction_signs_images_of_its_job() -> None:
    text = f"https://gw.example/door/v1/predictions/cat#key={'a' * 64}&valid=60"
    address = PredictionAddress.parse(text)
    assert str(address) == text
    assert address.url == "https://gw.example/door/v1/predictions/cat"
    url = address.image_url("t1.cat", "0.png")
    assert url.startswith("https://gw.example/door/v1/images/t1.cat/0.png?expires=")
    for wrong in (text.replace("a" * 64, "a"), text.replace("cat", "../x"), text + "0" * 9, "x"):
        with pytest.raises(ValueError, match="HTTP gateway"):
            PredictionAddress.parse(wrong)
