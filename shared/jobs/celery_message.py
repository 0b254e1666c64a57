"""The only place that knows Celery's message.

Producers write the message themselves, in Celery's protocol 2 inside kombu's Redis envelope: so the
job record and the message are stored by one server-side script, and no process that only submits
has to import Celery. A test compares the result with what Celery itself sends.
"""

import base64
import json
import os
import socket
from typing import Any

from imagefleet.shared.jobs.model import JobRequest, pack

TASK_NAME = "imagefleet.render"
BULK_TASK_NAME = "imagefleet.bulk_shard"
RECORDED = "recorded"
"""Header of a message that was stored together with its job's record. A message without it came
from plain Celery, and whoever reads it makes the record; redrive.lua takes it away."""
NO_PROMPTS_IN_LOGS = ""
"""`argsrepr`/`kwargsrepr`: Celery would log the prompt, and carry it twice."""


def job_message(job_id: str, request: JobRequest, queue: str) -> str:
    """The Redis list element for one job."""
    return task_message(
        TASK_NAME,
        job_id,
        pack(request),
        queue=queue,
        priority=request.priority,
        images=request.num_images_per_prompt,
        steps=_steps_painted(request),
        recorded=True,
    )


def task_message(
    task: str,
    id: str,
    kwargs: dict[str, Any],
    *,
    queue: str,
    priority: int,
    images: int,
    steps: int | None = None,
    recorded: bool = False,
) -> str:
    """The Redis list element for one call of a Celery task. `images`, `steps`: see `_headers`.

    Celery message protocol 2, https://docs.celeryq.dev/en/stable/internals/protocol.html
    """
    body = json.dumps([[], kwargs, _NO_WORKFLOW], separators=(",", ":"))
    return json.dumps(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": _headers(task, id, images, steps, recorded=recorded),
            "properties": _properties(id, priority, queue),
        },
        separators=(",", ":"),
    )


def _steps_painted(request: JobRequest) -> int | None:
    """None: the model's own."""
    steps = request.num_inference_steps
    return None if steps is None else request.steps_painted(steps)


_NO_WORKFLOW = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_ORIGIN = f"{os.getpid()}@{socket.gethostname()}"


def _headers(
    task: str, job_id: str, images: int, steps: int | None, *, recorded: bool
) -> dict[str, Any]:
    """Three are ours. `images` and `steps`: what a claim counts without opening the body; left out
    they mean 1 and the model's own. `recorded`: see RECORDED."""
    return {
        "lang": "py",
        "task": task,
        "id": job_id,
        "root_id": job_id,
        "parent_id": None,
        "group": None,
        "argsrepr": NO_PROMPTS_IN_LOGS,
        "kwargsrepr": NO_PROMPTS_IN_LOGS,
        "origin": _ORIGIN,
        **({"images": images} if images > 1 else {}),
        **({"steps": steps} if steps else {}),
        **({RECORDED: True} if recorded else {}),
    }


def _properties(job_id: str, priority: int, queue: str) -> dict[str, Any]:
    return {
        "correlation_id": job_id,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "delivery_mode": 2,
        "delivery_tag": job_id,
        "priority": priority,
        "body_encoding": "base64",
    }
