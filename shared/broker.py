"""The only place that knows Celery's message and Redis connection options.

Producers write the message themselves, in Celery's protocol 2 inside kombu's Redis envelope: so the
job record and the message are stored by one server-side script, and no process that only submits
has to import Celery. A test compares the result with what Celery itself sends.
"""

import base64
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from imagefleet.shared import sentinel
from imagefleet.shared.errors import BrokerUnavailable, ConfigurationError
from imagefleet.shared.jobs import JobRequest, pack

if TYPE_CHECKING:  # a quarter of a second that `import producer` does not spend
    from redis import Redis

TASK_NAME = "imagefleet.render"
BULK_TASK_NAME = "imagefleet.bulk_shard"
RECORDED = "recorded"
"""Header of a message that was stored together with its job's record. A message without it came
from plain Celery, and whoever reads it makes the record; redrive.lua takes it away."""
NO_PROMPTS_IN_LOGS = ""
"""`argsrepr`/`kwargsrepr`: Celery would log the prompt, and carry it twice."""


UNTIL_IT_IS_BACK = -1
"""Retries of a worker that holds finished pictures."""


def connect(url: str, *, retries: int = 3) -> "Redis":
    """A client for `url`. Connects at the first command, retries a lost connection `retries` times.

    Raises:
        ConfigurationError: not an address of a Redis.
    """
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    from imagefleet.shared.refusals import TakesNoWrites, UntilItTakesWrites

    patient = retries == UNTIL_IT_IS_BACK
    kind = UntilItTakesWrites if patient else Retry
    lost = [redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError]
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",  # rubbish on a queue must reach the code that refuses it
        "retry": kind(ExponentialBackoff(cap=1.0, base=0.05), retries=retries),
        "retry_on_error": [*lost, TakesNoWrites] if patient else lost,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "health_check_interval": 30,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        if url.startswith(sentinel.SCHEME):
            return sentinel.connect(url, options)
        return redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise ConfigurationError(f"IMAGEFLEET_REDIS_URL: {error}") from None


@contextmanager
def clear_errors(url: str) -> Iterator[None]:
    """Map redis-py's errors inside the block to BrokerUnavailable, without the password."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise BrokerUnavailable(_sentence(error, url)) from None


def check(client: "Redis", url: str) -> None:
    """Raise BrokerUnavailable with one clear sentence unless Redis answers."""
    with clear_errors(url):
        client.ping()


def _sentence(error: Exception, url: str) -> str:
    import redis
    from redis.sentinel import MasterNotFoundError

    from imagefleet.shared.refusals import will_pass

    where = url.partition("?")[0].rpartition("@")[2]  # passwords stand before and behind
    if isinstance(error, MasterNotFoundError):
        return f"no Sentinel of {where} lets us ask it and knows a master of that name"
    if isinstance(error, redis.AuthenticationError):
        return f"Redis at {where} refuses the credentials: {error}"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"Redis at {where} does not give this user the rights of docs/redis.md: {error}"
    if isinstance(error, redis.OutOfMemoryError):
        return f"Redis at {where} is full and took nothing: {error}"
    if will_pass(error):
        return f"Redis at {where} takes no writes for now and took nothing: {error}"
    if isinstance(error, redis.ResponseError):
        return f"Redis at {where} refuses: {error}"
    return f"Redis at {where} does not answer ({error}); start it or set IMAGEFLEET_REDIS_URL"


def celery_url(url: str) -> str:
    """The same address in the spelling of kombu and Celery's result backend."""
    if url.startswith(sentinel.SCHEME):
        return sentinel.Address.parse(url).celery_url()
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    if url.startswith("unix://"):
        address = "redis+socket://" + address.removeprefix("unix://")
        if "db" in options:
            options["virtual_host"] = options.pop("db")
    if url.startswith("rediss://"):
        options.setdefault("ssl_cert_reqs", "required")
    return address + (f"?{urlencode(options)}" if options else "")


def transport_options(url: str) -> dict[str, Any]:
    """What `celery_url` cannot say: for `broker_` and `result_backend_transport_options`."""
    if url.startswith(sentinel.SCHEME):
        return {"socket_keepalive": True, **sentinel.Address.parse(url).celery_options()}
    return {"socket_keepalive": not url.startswith("unix:")}


def message(job_id: str, request: JobRequest, queue: str) -> str:
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
