"""Each parameter of a job has one row, and everything that is derived from the rows agrees."""

import re
from dataclasses import fields
from typing import Final

import click
import pytest

from imagefleet.producer.commands.bulk_run import run
from imagefleet.producer.commands.submit import submit
from imagefleet.shared.bulk import shard_message
from imagefleet.shared.bulk.plan import Plan, RowParameters
from imagefleet.shared.jobs import message_arguments
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_lookups import (
    PARAMETERS,
    ROW_COUNTS,
    ROW_PARAMETERS,
    has_neutral_value,
    is_used,
    kind,
)
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo
from imagefleet.worker.engine.contract.sampling import Sampling
from imagefleet.worker.images import metadata
from tests.support.processes import ROOT
from tools.client_parameters import FILE, text

_MAX_FILES: Final = 10
_ENGINE: Final = "worker/engine/"
_SAMPLED: Final = {field.name for field in fields(Sampling)}


def _options(command: click.Command) -> dict[str, click.Option]:
    return {str(each.name): each for each in command.params if isinstance(each, click.Option)}


def test_every_field_of_a_request_has_a_row_with_a_sentence() -> None:
    assert list(PARAMETERS) == list(JobRequest.model_fields)
    for name, row in PARAMETERS.items():
        assert row.about.endswith("."), name
        assert not row.help or row.help.endswith("."), name


def test_rows_name_only_what_exists() -> None:
    for name, row in PARAMETERS.items():
        named = {row.offered_by, row.at_most} - {""}
        assert named <= Offer.model_fields.keys(), name
        assert {row.counted_as or row.listed_as} - {""} <= Plan.model_fields.keys(), name
        assert {row.needs} - {""} <= PARAMETERS.keys(), name


def test_the_newest_versions_of_messages_are_those_of_the_table() -> None:
    assert max(row.since for row in PARAMETERS.values()) == message_arguments.MESSAGE_VERSION
    versions = [PARAMETERS[name].rows_since or 0 for name in ROW_PARAMETERS]
    assert max(versions) == shard_message.MESSAGE_VERSION


@pytest.mark.parametrize("name", [name for name in PARAMETERS if PARAMETERS[name].since > 1])
def test_a_newer_parameter_is_not_sent_unless_it_is_used(name: str) -> None:
    """Workers of release 0.1.0 refuse a message with a field that they do not know."""
    assert JobRequest.model_fields[name].exclude_if is not None
    plain = JobRequest(prompt="a")
    assert not is_used(name, getattr(plain, name))
    assert name not in pack(plain)["request"]


@pytest.mark.parametrize("name", [name for name in ROW_PARAMETERS if PARAMETERS[name].since > 1])
def test_a_plan_shows_that_its_rows_have_a_newer_parameter(name: str) -> None:
    row = PARAMETERS[name]
    assert (row.rows_since or 1) > 1
    assert row.counted_as or row.listed_as or row.needs, "older workers would not refuse the plan"


def test_plans_have_the_parameters_of_rows_and_their_counts() -> None:
    assert set(RowParameters.model_fields) == set(ROW_PARAMETERS)
    plain = Plan.model_fields
    assert all(plain[field].annotation is int for field in ROW_COUNTS.values())


def test_a_parameter_with_a_neutral_value_is_unused_without_one() -> None:
    for name in PARAMETERS:
        assert not (has_neutral_value(name) and is_used(name, None)), name


def test_every_parameter_is_an_option_of_submit_and_those_of_rows_of_bulk_run() -> None:
    submitted, of_runs = _options(submit), _options(run)
    assert submitted.keys() >= PARAMETERS.keys() - {"prompt"}
    assert of_runs.keys() >= {*ROW_PARAMETERS, "height", "width", "model"}
    for name in ROW_PARAMETERS:
        assert of_runs[name].to_info_dict() == submitted[name].to_info_dict()
    for name in PARAMETERS.keys() - {"prompt"}:
        assert "`" not in (submitted[name].help or "")
        assert submitted[name].is_flag == (kind(name) is bool), name


def test_an_option_that_is_not_given_leaves_the_default_to_the_request() -> None:
    context = submit.make_context("submit", ["a"])
    assert {context.params[name] for name in PARAMETERS.keys() - {"prompt"}} == {None}


def test_options_give_the_types_that_a_request_checks() -> None:
    given = {
        "--negative-prompt": "b",
        "--height": "64",
        "--width": "64",
        "--clip-skip": "2",
        "--num-images-per-prompt": "8",
        "--image-index": "3",
        "--guidance-rescale": "0.5",
        "--lora": "style:0.8",
        "--callback-event": "failed",
        "--keep": "30d",
        "--ttl": "5",
        "--format": "webp",
        "--priority": "0",
        "--metadata": '{"shot": 3}',
        "--seed": "7",
    }
    words = [word for pair in given.items() for word in pair]
    context = submit.make_context("submit", ["a", *words, "--preview", "--prompt-weighting"])
    parameters = {name: context.params[name] for name in PARAMETERS.keys() - {"prompt"}}
    chosen = {name: value for name, value in parameters.items() if value is not None}
    request = JobRequest.parse({"prompt": "a", **chosen})
    assert (request.preview, request.prompt_weighting, request.image_index) == (True, True, 3)
    assert (request.loras, request.keep) == ((("style", 0.8),), 30 * 86_400)
    assert len(chosen) == len(given) + 2


def test_the_record_of_sampling_has_names_of_parameters() -> None:
    assert PARAMETERS.keys() >= _SAMPLED
    pixels = {"init_image", "control_image", "input_latents"}
    assert {field.name for field in fields(ImageSpec)} - _SAMPLED == pixels


def test_parameters_in_the_metadata_are_sampled() -> None:
    named = {name for name, row in PARAMETERS.items() if row.metadata not in ("apart", "")}
    assert named <= _SAMPLED
    assert set(INPUT_FIELDS) <= {n for n, row in PARAMETERS.items() if row.metadata == "apart"}
    documented = metadata.image_metadata.__doc__ or ""
    assert all(name in documented for name in named)


def test_a_default_of_a_model_belongs_to_a_sampled_parameter() -> None:
    """`plan_attempt` finds the defaults by these names."""
    for record in (ModelInfo, ImageUse):
        for field in fields(record):
            name = field.name.removeprefix("default_")
            assert name in {field.name, "strengths"} | _SAMPLED, name


def test_the_typed_keywords_of_the_client_are_current() -> None:
    assert FILE.read_text() == text(), "run `make docs`"


@pytest.mark.parametrize("name", ["clip_skip", "guidance_rescale", "image_index"])
def test_few_files_name_a_parameter(name: str) -> None:
    """The files of the engine are not counted: each parameter has its own use there. Before the
    table, 11 files named `clip_skip` and `guidance_rescale` each, and others had to be changed that
    did not name them."""
    files = [path for path in _files_that_name(name) if not path.startswith(_ENGINE)]
    assert len(files) <= _MAX_FILES, files


def _files_that_name(word: str) -> list[str]:
    trees = ("worker", "producer", "shared", "src")
    files = (path for tree in trees for path in (ROOT / tree).rglob("*.py"))
    return sorted(
        str(path.relative_to(ROOT)) for path in files if re.search(rf"\b{word}\b", path.read_text())
    )
