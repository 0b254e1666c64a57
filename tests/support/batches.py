"""Order batches with OpenAI's client in tests."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import openai
from openai.types import Batch

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from tests.support.gateway import GatewayProcess
from tests.support.processes import until

URL: Final = "/v1/images/generations"
_ENDED: Final = ("completed", "failed", "expired", "cancelled")


def make_key(producer: Client, tenant: str, **more: Any) -> str:
    """Return a new key of a tenant, which may submit and read."""
    keys = ApiKeys(producer.connection)
    return keys.create(tenant, tenant, (Scope.SUBMIT, Scope.READ), **more)


def client_of(gateway: GatewayProcess, key: str = "any") -> openai.OpenAI:
    """Return OpenAI's client of a gateway. It repeats no request."""
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def line(custom_id: str, body: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a line of an input file."""
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": body, **more}


def upload(client: openai.OpenAI, lines: Iterable[Any]) -> str:
    """Upload an input file and return its id. Texts are lines as they stand."""
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    content = "".join(f"{text}\n" for text in texts).encode()
    made: str = client.files.create(file=("in.jsonl", content), purpose="batch").id
    return made


def order(client: openai.OpenAI, lines: Iterable[Any], **more: Any) -> Batch:
    """Order a batch."""
    file_id = upload(client, lines)
    given = {"endpoint": URL, "completion_window": "24h", **more}
    return client.batches.create(input_file_id=file_id, **given)


def end_of(client: openai.OpenAI, batch_id: str) -> Batch:
    """Wait until a batch has ended, and return it."""

    def ended() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status in _ENDED else None

    return until(ended)


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """Return the lines of an output file by `custom_id`."""
    if file_id is None:
        return {}
    texts = client.files.content(file_id).content.splitlines()
    lines = [json.loads(text) for text in texts]
    assert len({each["custom_id"] for each in lines}) == len(lines)
    return {each["custom_id"]: each for each in lines}
