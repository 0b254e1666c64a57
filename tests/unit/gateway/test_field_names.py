"""Errors about the parameters of a job name the fields that the request has for them."""

from typing import Any

import pytest

from imagefleet.producer.gateway.predictions.models import FleetModels
from imagefleet.producer.gateway.predictions.prediction_request import PredictionRequest
from imagefleet.producer.gateway.problems import Problem, wrong_parameter
from imagefleet.producer.gateway.webui.generation_request import GenerationRequest
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.engines import INFO

_ADDRESS = "https://example.org/a.png"


@pytest.fixture
def offer() -> Offer:
    return offer_of(INFO)


def _refusal(parameters: dict[str, Any], offer: Offer) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        admit(JobRequest.parse(parameters), {"default": offer})
    return refused.value


def _of_prediction(body: dict[str, Any], offer: Offer) -> Problem:
    asked = PredictionRequest.parse({**body, "input": {"prompt": "a", **body.get("input", {})}})
    parameters = asked.job_parameters(FleetModels(offers={"default": offer}, aliases={}), None)
    error = _refusal(parameters | asked.webhook_parameters(), offer)
    return wrong_parameter(error, asked.names(), asked.fields())


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input": {"num_outputs": 0}}, "num_outputs=0"),
        ({"input": {"num_images_per_prompt": 0}}, "num_images_per_prompt=0"),
        ({"input": {"num_images_per_prompt": None, "num_outputs": 99}}, "num_outputs=99"),
        ({"input": {"output_format": "gif"}}, "output_format='gif'"),
        ({"input": {"image": _ADDRESS, "prompt_strength": 2}}, "prompt_strength=2"),
        ({"input": {"scheduler": "K_NOTHING"}}, "scheduler='K_NOTHING'"),
        ({"version": "stability/other"}, "version='stability/other'"),
        ({"webhook": "ftp://example.org"}, "webhook='ftp://example.org'"),
        ({"webhook_completed": "ftp://example.org"}, "webhook_completed='ftp://example.org'"),
    ],
)
def test_a_prediction_reads_of_the_inputs_that_it_has(
    body: dict[str, Any], named: str, offer: Offer
) -> None:
    problem = _of_prediction(body, offer)
    assert problem.status == 400
    assert problem.field == named.partition("=")[0]
    assert problem.message.startswith(f"{named}: ")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n_iter": 0, "batch_size": None}, "n_iter=0"),
        ({"n_iter": 20, "batch_size": 20}, "n_iter × batch_size=400"),
        ({"steps": 0}, "steps=0"),
        ({"negative_prompt": 7}, "negative_prompt=7"),
        ({"clip_skip": 99}, "clip_skip=99"),
        ({"override_settings": {"CLIP_stop_at_last_layers": 99}}, "CLIP_stop_at_last_layers=98"),
        ({"override_settings": {"sd_model_checkpoint": "x"}}, "sd_model_checkpoint='x'"),
        ({"model": "x"}, "model='x'"),
        ({"override_settings": {"samples_format": "gif"}}, "samples_format='gif'"),
    ],
)
def test_the_web_uis_clients_read_of_the_fields_that_they_sent(
    fields: dict[str, Any], named: str, offer: Offer
) -> None:
    asked = GenerationRequest.parse({"prompt": "a", **fields}, has_image=False)
    problem = wrong_parameter(_refusal(dict(asked.parameters), offer), asked.names, asked.echo)
    assert problem.message.startswith(f"{named}: ")


def test_the_web_uis_clients_read_of_their_images(offer: Offer) -> None:
    asked = GenerationRequest.parse({"prompt": "a"}, has_image=True)
    parameters = {**asked.parameters, "image": "no address"}
    problem = wrong_parameter(_refusal(parameters, offer), asked.names, asked.echo)
    assert problem.field == "init_images"
