"""`python -m tests.chaos.hostile_producer CASES SECONDS JOURNAL`: the hostile producer of a run.

It sends its cases at even intervals, and repeats each one until Redis has taken it. Then it writes
to the journal what it was told: a line of JSON with the error, or with null.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis

from imagefleet import Client
from imagefleet.shared.errors import BrokerUnavailable, InvalidRequest, UnknownJob
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.settings.settings import Settings
from tests.chaos.hostile_cases import HOSTILE_ID
from tests.fuzz.cases import Case, MessageCase, RequestCase, load_cases

_POLL_S: Final = 0.1

Send = Callable[[Case], None]


def make_send(settings: Settings) -> Send:
    """Return a function that sends a case once.

    It raises InvalidRequest if the client refuses the case, and other errors to be called again.
    """
    client = Client()
    url = settings.redis_url.get_secret_value()
    lanes = connect_lanes(url, settings.namespace, lanes=settings.lanes)

    def push(case: MessageCase) -> None:
        lane = lanes.of(case.id)
        with lane.client.pipeline(transaction=True) as pipe:
            if case.record:
                fields: dict[Any, Any] = {**case.record}
                pipe.hset(job_key(lane.namespace, case.id), mapping=fields)
            pipe.lpush(f"{lane.namespace}.{case.queue}", case.message)
            pipe.execute()

    def send(case: Case) -> None:
        if isinstance(case, MessageCase):
            push(case)
            return
        assert isinstance(case, RequestCase)
        if not HOSTILE_ID.fullmatch(case.id):
            client.get(case.id).status()  # raises UnknownJob while the id is not in use yet
        client.submit_many([{"id": case.id, **case.parameters}])

    return send


def send_until_answered(send: Send, case: Case) -> str | None:
    """Return the text of the refusal; None if the case was sent."""
    while True:
        try:
            send(case)
        except InvalidRequest as error:
            return str(error)
        except (BrokerUnavailable, UnknownJob, redis.RedisError):
            time.sleep(_POLL_S)
        else:
            return None


def main(cases_file: str, seconds: str, journal: str) -> None:
    cases = load_cases(Path(cases_file))
    send = make_send(Settings.load())
    began = time.monotonic()
    with Path(journal).open("w") as lines:
        for number, case in enumerate(cases):
            due = began + float(seconds) * number / len(cases)
            time.sleep(max(0.0, due - time.monotonic()))
            lines.write(json.dumps(send_until_answered(send, case)) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
