"""What a caller submits becomes job requests, or an error that names entry, field and value."""

from io import BytesIO
from pathlib import Path
from typing import Any

import fakeredis
import numpy as np
import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.producer.client.submission import EntryParser
from imagefleet.producer.connection.input_images import InputImageUploader
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore

STORE = MemoryStore()


def _parse(*entries: object, several: bool = True, **common: Any) -> list[tuple[str, JobRequest]]:
    uploader = InputImageUploader(lambda _: STORE)
    return EntryParser(common, uploader, several=several).parse(enumerate(entries), {})


def _png(color: str = "red") -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8), color).save(buffer, "PNG")
    return buffer.getvalue()


def test_numpy_numbers_are_numbers() -> None:
    [(_, request)] = _parse({"prompt": "a", "seed": np.int64(7)}, guidance_scale=np.float32(2.5))
    assert (request.seed, request.guidance_scale) == (7, 2.5)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (3, "entry 1: prompt=3: must be a prompt, or a mapping of parameters"),
        ({"prompt": "b", "seed": -1}, "entry 1: seed=-1: must be greater"),
        ({"promt": "b"}, "entry 1: promt='b': is not a parameter of a job; did you mean prompt?"),
        ({"sead": 3}, "entry 1: sead=3: is not a parameter of a job; did you mean seed?"),
        ({"color": "red"}, "entry 1: color='red': is not a parameter of a job; the parameters are"),
        ({"prompt": "b", "id": "a b"}, "entry 1: id='a b': must be 1 to 128"),
        ({"prompt": "b", "image": "/tmp/a.png"}, "entry 1: image='/tmp/a.png': must be an http"),
    ],
)
def test_a_wrong_entry_is_named_with_its_number_field_and_value(
    entry: object, sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _parse("a", entry)
    assert str(refused.value).startswith(sentence)
    assert refused.value.entry == 1


def test_a_single_entry_has_no_number() -> None:
    with pytest.raises(InvalidRequest, match=r"^seed=-1") as refused:
        _parse({"prompt": "a", "seed": -1}, several=False)
    assert refused.value.entry is None


def test_one_id_for_several_jobs_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="id='x': names one job"):
        _parse("a", "b", id="x")


def test_a_parameter_that_is_none_does_not_replace_that_of_all_entries() -> None:
    [(_, request)] = _parse({"prompt": "a", "tenant": None, "seed": None}, tenant="gold", seed=7)
    assert (request.tenant, request.seed) == ("gold", 7)


def test_a_tenant_that_is_none_does_not_replace_that_of_the_client() -> None:
    redis = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    with Client(redis=redis, tenant="gold") as client:
        job = client.submit("a", tenant=None)
        assert [each.id for each in client.jobs(tenant="gold")] == [job.id]


def test_a_redis_client_that_answers_with_bytes_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="decode_responses=True"):
        Client(redis=fakeredis.FakeRedis())


def test_an_image_in_hand_is_uploaded_once_for_each_content(tmp_path: Path) -> None:
    path = tmp_path / "a file.png"
    path.write_bytes(_png())
    before = set(STORE.list())
    image = Image.open(path)
    requests = [
        request
        for _, request in _parse(
            {"prompt": "a", "image": path},
            {"prompt": "b", "image": _png()},
            {"prompt": "c", "image": _png(), "mask_image": image},
        )
    ]
    keys = {request.image for request in requests}
    assert len(keys) == 1
    [key] = keys
    assert key is not None
    assert STORE.get(key) == _png()
    mask = requests[2].mask_image
    assert mask is not None
    assert Image.open(BytesIO(STORE.get(mask))).getpixel((0, 0)) == (255, 0, 0)
    assert set(STORE.list()) - before == {key, mask}


def test_nothing_is_uploaded_for_entries_that_are_refused() -> None:
    before = set(STORE.list())
    with pytest.raises(InvalidRequest, match=r"^entry 1: seed=-1"):
        _parse({"prompt": "a", "image": _png("green")}, {"prompt": "b", "seed": -1})
    with pytest.raises(InvalidRequest, match=r"^entry 1: seed=-1"):
        _parse("a", {"prompt": "b", "seed": -1}, image=_png("green"))
    assert set(STORE.list()) == before


def test_images_are_uploaded_to_the_stores_of_their_models() -> None:
    stores = {"small": MemoryStore(), "large": MemoryStore()}
    parser = EntryParser({"image": _png()}, InputImageUploader(lambda model: stores[str(model)]))
    own = {"prompt": "c", "model": "large", "mask_image": _png("white")}
    entries = [{"prompt": "a", "model": "small"}, {"prompt": "b", "model": "small"}, own]
    requests = [request for _, request in parser.parse(enumerate(entries), {})]
    assert list(stores["small"].list()) == [requests[0].image] == [requests[1].image]
    assert set(stores["large"].list()) == {requests[2].image, requests[2].mask_image}


def test_an_image_of_all_entries_is_uploaded_once() -> None:
    reads = []

    class Counting(Image.Image):
        def save(self, fp: Any, format: str | None = None, **_: Any) -> None:
            reads.append(format)
            fp.write(_png("blue"))

    requests = [request for _, request in _parse("a", "b", image=Counting(), strength=0.5)]
    assert reads == ["PNG"]
    assert requests[0].image == requests[1].image


@pytest.mark.parametrize("address", ["https://h/a.png", "jobs/a/0.png", "s3://b/jobs/a/0.png"])
def test_an_address_is_never_opened_here(address: str) -> None:
    assert _parse({"prompt": "a", "image": address})[0][1].image == address


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (b"GIF89a", "image='6 bytes': must be a PNG, JPEG or WebP file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(MAX_INPUT_BYTES), "must be at most 20,000,000 bytes"),
        (Path("/no/such.png"), "image='/no/such.png': No such file"),
        (Path("/tmp/a\0b.png"), "cannot be read: embedded null byte"),
        (7, "image='int': must be an http"),
        ("data:image/png;base64,AAAA", "must be an http"),
        ("./a.png", "must be an http"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_at_once(image: object, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _parse({"prompt": "a", "image": image}, several=False)
    assert sentence in str(refused.value)
    assert refused.value.field == "image"


def test_metadata_of_the_caller_are_kept_as_json_and_bounded() -> None:
    [(_, request)] = _parse({"prompt": "a", "metadata": {"shot": (1, "ä"), "by": None}})
    assert request.metadata == {"shot": [1, "ä"], "by": None}
    assert JobRequest.parse_stored(request.model_dump_json()) == request
    with pytest.raises(InvalidRequest, match="must be at most 4096 bytes as JSON; has 4097"):
        _parse({"prompt": "a", "metadata": {"x": "y" * 4088}}, several=False)
    for wrong in ({"x": b"y"}, {"x": float("nan")}, ["x"], {1: "x"}):
        with pytest.raises(InvalidRequest, match="metadata="):
            _parse({"prompt": "a", "metadata": wrong}, several=False)


@pytest.mark.parametrize("levels", [33, 300, 100_000])
def test_metadata_are_refused_if_they_are_nested_too_deeply(levels: int) -> None:
    nested: object = {}
    for _ in range(levels - 1):
        nested = {"": nested}
    with pytest.raises(InvalidRequest) as refused:
        _parse({"prompt": "a", "metadata": nested}, several=False)
    assert refused.value.field == "metadata"
    while isinstance(nested, dict) and nested:  # or its end would be too deep for the interpreter
        nested = nested.pop("")


def test_metadata_may_have_32_levels() -> None:
    nested: object = {}
    for _ in range(30):
        nested = [nested]
    [(_, request)] = _parse({"prompt": "a", "metadata": {"a": nested}}, several=False)
    assert JobRequest.parse_stored(request.model_dump_json()) == request


def test_a_request_without_metadata_reads_as_in_release_0_1_0() -> None:
    assert "metadata" not in JobRequest(prompt="a").model_dump(mode="json")
