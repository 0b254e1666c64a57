"""Files over HTTP, with the clients of OpenAI and Replicate: uploads, lists, tenants, expiry."""

import io
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image
from replicate.client import Client as ReplicateClient

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from tests.support.gateway import GatewayFleet, GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker

_SCOPES = (Scope.SUBMIT, Scope.READ)


def _key(producer: Client, tenant: str, **more: Any) -> str:
    return ApiKeys(producer.connection).create(tenant, tenant, _SCOPES, **more)


@pytest.fixture
def guarded(start: StartWorker, worker: Worker) -> GatewayProcess:
    """A gateway that asks for keys."""
    return start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")


def _openai(gateway: GatewayProcess, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def test_a_file_is_uploaded_listed_read_and_deleted(gateway: GatewayProcess) -> None:
    client = _openai(gateway, "any")
    content = b'{"custom_id": "a"}\n' * 300_000  # more than one part
    made = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (made.bytes, made.filename, made.purpose) == (len(content), "in.jsonl", "batch")
    assert client.files.retrieve(made.id) == made
    other = client.files.create(
        file=("b", b"b"),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert other.expires_at == other.created_at + 3600
    assert [each.id for each in client.files.list()] == [other.id, made.id]
    assert [each.id for each in client.files.list(limit=1)] == [other.id, made.id]
    assert [each.id for each in client.files.list(purpose="batch")] == [made.id]
    assert client.files.content(made.id).content == content
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(made.id)


def test_replicates_client_uploads_to_the_same_address(gateway: GatewayProcess) -> None:
    client = ReplicateClient(api_token="any", base_url=gateway.url)
    made = client.files.create(io.BytesIO(b"abc"), filename="a.png", metadata={"a": 1})
    assert (made.name, made.size, made.metadata) == ("a.png", 3, {"a": 1})
    assert client.files.get(made.id) == made
    assert [each.id for each in client.files.list()] == [made.id]
    assert list(_openai(gateway, "any").files.list()) == []
    assert client.files.delete(made.id)
    assert client.files.list() == []


def test_a_job_starts_from_a_file_by_its_id_or_address(
    gateway: GatewayProcess, producer: Client
) -> None:
    png = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(png, "PNG")
    client = _openai(gateway, "any")
    made = client.files.create(file=("a.png", png.getvalue()), purpose="vision")
    for image in (made.id, f"{gateway.url}/v1/files/{made.id}"):
        answer = client.post(
            "/images/edits",
            body={"prompt": "a", "images": [{"image_url": image}]},
            cast_to=object,
        )
        assert isinstance(answer, dict)
        assert answer["data"]
    stored = {job.request.image for job in producer.jobs()}
    assert len(stored) == 1
    assert producer.connection.store().get(str(stored.pop())) == png.getvalue()


def test_the_file_of_another_tenant_is_as_unknown_as_one_that_never_was(
    guarded: GatewayProcess, producer: Client
) -> None:
    ours = _openai(guarded, _key(producer, "gold"))
    theirs = _openai(guarded, _key(producer, "silver"))
    made = ours.files.create(file=("a", b"secret"), purpose="batch")
    never = f"file-{'0' * 32}"
    calls = (theirs.files.retrieve, theirs.files.content, theirs.files.delete)
    for call in calls:
        messages = []
        for name in (made.id, never):
            with pytest.raises(openai.NotFoundError) as caught:
                call(name)
            messages.append(caught.value.message.replace(name, ""))
        assert messages[0] == messages[1]
    with pytest.raises(openai.NotFoundError):
        theirs.post(
            "/images/edits",
            body={"prompt": "a", "images": [{"image_url": made.id}]},
            cast_to=object,
        )
    assert list(theirs.files.list()) == []
    assert ours.files.content(made.id).content == b"secret"


@pytest.mark.parametrize(
    ("form", "files", "field"),
    [
        ({"purpose": "batch"}, {}, "file"),
        ({"purpose": "batch"}, {"file": ("a", b"")}, "file"),
        ({}, {"content": ("a", b"")}, "content"),
        ({"purpose": "other"}, {"file": ("a", b"a")}, "purpose"),
        ({"metadata": "[1]"}, {"content": ("a", b"a")}, "metadata"),
        (
            {"purpose": "batch", "expires_after[seconds]": "5"},
            {"file": ("a", b"a")},
            "expires_after[seconds]",
        ),
    ],
)
def test_a_wrong_field_of_an_upload_is_named(
    fleet: GatewayFleet, form: dict[str, str], files: dict[str, Any], field: str
) -> None:
    forced = files or {"other": ("a", b"a")}
    answer = httpx.post(f"{fleet.open_url}/v1/files", data=form, files=forced)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_files_have_a_limit_of_their_own(start: StartWorker, worker: Worker) -> None:
    limits = {"IMAGEFLEET_HTTP_MAX_BODY_BYTES": "1000", "IMAGEFLEET_HTTP_MAX_FILE_BYTES": "50000"}
    client = _openai(start_gateway(start, **limits), "any")
    made = client.files.create(file=("a", b"a" * 50_000), purpose="batch")
    assert client.files.content(made.id).content == b"a" * 50_000
    with pytest.raises(openai.APIStatusError, match="50,000 bytes") as caught:
        client.files.create(file=("a", b"a" * 50_001), purpose="batch")
    assert caught.value.status_code == 413


def test_a_file_lies_in_a_folder_that_nobody_can_guess(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    made = _openai(gateway, "any").files.create(file=("../../a", b"a"), purpose="batch")
    [path] = (tmp_path / "store/uploads").rglob("file-*")
    assert path.name == made.id
    assert len(path.parent.name) == 32
    listed = httpx.get(f"{gateway.url}/v1/files/..%2F{path.parent.name}%2F{made.id}/content")
    assert listed.status_code == 404
    page = httpx.get(f"{gateway.url}/v1/files/{made.id}/content")
    assert page.headers["content-disposition"] == "attachment"
    assert "sandbox" in page.headers["content-security-policy"]
    assert b64encode(page.content) == b"YQ=="
    assert page.headers["cache-control"] == "private, no-store"
