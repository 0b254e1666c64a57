"""The message that producers write equals the one that Celery sends."""

import base64
import json
from typing import Any

import redis
from celery import Celery

from imagefleet.shared.jobs.celery_message import TASK_NAME, job_message
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer

IGNORED = {
    *("origin", "timelimit", "delivery_tag", "reply_to", "argsrepr", "kwargsrepr", "recorded"),
    *("root_id", "correlation_id", "delivery_mode", "exchange"),
}
"""These differ by sender, or are left out, because neither workers nor Celery need them there."""
DEFAULTS: dict[str, Any] = {
    "shadow": None,
    "eta": None,
    "expires": None,
    "retries": 0,
    "group_index": None,
    "ignore_result": None,
    "parent_id": None,
    "group": None,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
"""Celery's defaults. A message without them means the same (message protocol 2)."""


def _comparable(text: str) -> dict[str, Any]:
    """Decode the body and drop what may differ."""
    envelope: dict[str, Any] = json.loads(text)
    encoding = envelope["properties"].pop("body_encoding", None)
    body = base64.b64decode(envelope["body"]) if encoding == "base64" else envelope["body"]
    args, kwargs, workflow = json.loads(body)
    envelope["body"] = args, kwargs, {name: each for name, each in workflow.items() if each}
    headers = {k: v for k, v in envelope["headers"].items() if DEFAULTS.get(k, ...) != v}
    properties = envelope["properties"]
    for part in (headers, properties, properties["delivery_info"]):
        for name in IGNORED:
            part.pop(name, None)
    return {**envelope, "headers": headers}


def test_our_message_equals_the_one_that_celery_sends(
    redis_server: LocalRedisServer, client: redis.Redis, namespace: str
) -> None:
    request = JobRequest.parse({"prompt": "ein Kreis 🔴", "seed": 7, "priority": 6})
    queue = f"{namespace}.default.native"
    url = celery_url(redis_server.url)
    with Celery(broker=url, set_as_current=False) as app:
        app.send_task(
            TASK_NAME,
            kwargs=pack(request),
            task_id="an-id",
            queue=queue,
            priority=6,
        )
    [sent_by_celery] = client.lrange(list_key(queue, 6), 0, -1)
    assert _comparable(job_message("an-id", request, queue)) == _comparable(str(sent_by_celery))
