"""The message producers write is the one Celery itself would send."""

import base64
import json
from typing import Any

import redis
from celery import Celery

from imagefleet.shared.jobs.celery_message import TASK_NAME, job_message
from imagefleet.shared.jobs.model import JobRequest, pack
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer

OUR_OWN = {"origin", "timelimit", "delivery_tag", "reply_to", "argsrepr", "kwargsrepr", "recorded"}
"""Of the sending process, unused here, or left empty by us to keep prompts out of logs."""
OPTIONAL = {
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
"""Celery writes these out; left out they mean the same (message protocol 2)."""


def _opened(text: str) -> dict[str, Any]:
    envelope: dict[str, Any] = json.loads(text)
    envelope["body"] = json.loads(base64.b64decode(envelope["body"]))
    headers = {k: v for k, v in envelope["headers"].items() if OPTIONAL.get(k, ...) != v}
    for part in (headers, envelope["properties"]):
        for name in OUR_OWN:
            part.pop(name, None)
    return {**envelope, "headers": headers}


def test_our_message_equals_celery_s_own(
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
    [theirs] = client.lrange(list_key(queue, 6), 0, -1)
    assert _opened(job_message("an-id", request, queue)) == _opened(theirs)
