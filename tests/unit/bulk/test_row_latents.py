"""Rows that go on with latents: which are planned, which are refused, and who may make them."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.row_conversion import encode_samples, is_sample_of, row_work
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.plans import Rows, plan_rows, planned_requests, planned_rows

OFFER: Final = offer_of(FakeEngine().info)
REFINER: Final = OFFER.model_copy(update={"required_images": ("image",)})
KEY: Final = "jobs/base-1/0.safetensors"
FILE: Final = save({"latents": np.zeros((1, 4, 8, 8), np.float32)})


def _offers(offer: Offer) -> dict[str, Offer]:
    return {DEFAULT_MODEL: offer, offer.model: offer}


def _reasons(store: MemoryStore) -> dict[Any, str]:
    return {row["row"]: f"{row['field']}: {row['reason']}" for row in read_rejected(store)}


def test_columns_of_latents_set_the_parameters_of_their_row() -> None:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "latents": KEY, "denoising_start": "0.8"},
        {"prompt": "b", "latents": "", "denoising_start": None},
    ]
    plan = plan_rows(rows, store, _offers(OFFER))
    first, second = planned_requests(store, plan)
    assert (first.latents, first.denoising_start) == (KEY, 0.8)
    assert (second.latents, second.denoising_start) == (None, None)
    assert plan.input_latents == 1


@pytest.mark.parametrize("latents", [KEY, None])
def test_only_a_plan_with_latents_has_messages_that_older_workers_refuse(
    latents: str | None,
) -> None:
    share = None if latents is None else 0.8
    rows: list[str | dict[str, Any]] = [{"prompt": "a", "latents": latents}]
    plan = plan_rows(rows, MemoryStore(), _offers(OFFER), denoising_start=share)
    expected = 1 if latents is None else 6
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {expected}
    assert (b"latents" in plan.dump()) is (latents is not None)


def test_latents_of_the_run_hold_for_plain_texts_too() -> None:
    store = MemoryStore()
    plan = plan_rows(["a"], store, _offers(REFINER), latents=KEY, denoising_start=0.8)
    [request] = planned_requests(store, plan)
    assert (request.latents, plan.input_latents) == (KEY, 1)
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {6}


def test_a_share_of_the_run_holds_for_the_latents_of_each_row() -> None:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "latents": KEY},
        "b",
        {"prompt": "c", "image": "inputs/a.png"},
        {"prompt": "d", "latents": KEY, "image": "inputs/a.png"},
        {"prompt": "e", "latents": KEY, "denoising_start": 1},
    ]
    plan = plan_rows(rows, store, _offers(REFINER), denoising_start=0.8)
    [request] = planned_requests(store, plan)
    assert request.denoising_start == 0.8
    assert _reasons(store) == {
        1: "denoising_start: needs latents",
        2: "denoising_start: needs latents",
        3: "latents: takes the place of image; leave one out",
        4: "denoising_start: must be less than 1",
    }


def test_files_of_latents_are_uploaded(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(FILE)
    (tmp_path / "b.safetensors").write_text("no latents")
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "latents": tmp_path / "a.safetensors"},
        {"prompt": "b", "latents": FILE},
        {"prompt": "c", "latents": tmp_path / "b.safetensors"},
    ]
    plan = plan_rows(rows, store, _offers(OFFER), denoising_start=0.8)
    keys = {request.latents for request in planned_requests(store, plan)}
    [key] = keys
    assert key is not None
    assert store.get(key) == FILE
    assert _reasons(store) == {2: "latents: must be a safetensors file"}


def test_a_file_that_is_an_image_is_no_latents_because_another_row_starts_from_it(
    tmp_path: Path,
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "image": tmp_path / "a.png"},
        {"prompt": "b", "latents": tmp_path / "a.png", "denoising_start": 0.8},
    ]
    assert plan_rows(rows, store, _offers(OFFER)).rows == 1
    assert _reasons(store) == {1: "latents: must be a safetensors file"}


def test_a_model_without_split_steps_takes_no_latents() -> None:
    older = _offers(OFFER.model_copy(update={"splits_denoising": False}))
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [{"prompt": "a", "latents": KEY, "denoising_start": 0.8}]
    plan_rows([*rows, "b"], store, older)
    assert _reasons(store) == {0: "latents: is not a parameter of the model fake"}
    with pytest.raises(InvalidRequest, match=r"^latents=.*: is not a parameter of the model fake$"):
        plan_rows(rows, MemoryStore(), older, denoising_start=0.5)


@pytest.mark.parametrize(
    ("rows", "options", "beginning"),
    [
        (["a"], {"denoising_end": 0.8}, "denoising_end=0.8"),
        ([{"prompt": "a", "denoising_end": 0.8}], {}, "column='denoising_end'"),
    ],
)
def test_no_row_leaves_latents(rows: Rows, options: dict[str, Any], beginning: str) -> None:
    store = MemoryStore()
    sentence = (
        rf"^{beginning}: leaves latents, and a dataset holds images; submit jobs with it, and give "
        r"their latents to rows with denoising_start"
    )
    with pytest.raises(InvalidRequest, match=sentence):
        plan_rows(rows, store, _offers(OFFER), **options)


def test_a_sample_of_other_latents_or_another_share_is_generated_again() -> None:
    store, engine = MemoryStore(), FakeEngine()
    address = "https://example.org/a?Signature=b"
    plan = plan_rows(["a"], store, latents=address, denoising_start=0.8)
    [row] = planned_rows(store, plan)
    request = plan.request(plan.shards[0], row)
    work = row_work(row.row, request, engine.info, _offers(OFFER))
    values = np.zeros((work.shape.height // 8, work.shape.width // 8, 4), np.float32)
    work.start_from(InputLatents(values=values, denoising_start=0.8, digest="sha256:0"))
    images = list(engine.start_batch(work.specs, work.shape).images())
    [sample] = encode_samples(work, row, request, images, engine)
    found = {name: sample.document[name] for name in ("latents", "denoising_start", "original")}
    assert found == {
        "latents": "https://example.org/a?Signature=***",
        "denoising_start": 0.8,
        "original": "sha256:0",
    }
    assert is_sample_of(sample, work, request, engine.info)
    for change in (
        {"latents": KEY},
        {"denoising_start": 0.7},
        {"latents": None, "denoising_start": None},
    ):
        other = request.model_copy(update=change)
        other_work = row_work(row.row, other, engine.info, _offers(OFFER))
        assert not is_sample_of(sample, other_work, other, engine.info)
    not_fetched = row_work(row.row, request, engine.info, _offers(OFFER))
    assert is_sample_of(sample, not_fetched, request, engine.info)


def test_a_plain_text_is_rejected_if_the_model_needs_an_image() -> None:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = ["a", {"prompt": "b", "image": "inputs/a.png"}]
    assert plan_rows(rows, store, _offers(REFINER)).rows == 1
    assert _reasons(store) == {
        0: "image: is missing; every job of the model fake needs image, or latents",
    }
