"""The same work on Celery's own Redis transport, set up as its documentation advises.

`python -m tests.chaos.stock_app KIND ORDERS JOURNAL` is a producer of it. Each finished run of a
task is written down: that stands for the callback a customer would get.
"""

import os
import sys
import time
import uuid
from pathlib import Path
from typing import Final

from celery import Celery

from imagefleet.shared.redis_client.connection import RETRY_FOREVER, celery_url, connect
from tests.chaos.orders import Order, Producer, read
from tests.chaos.producers import due, send_task, until_accepted

URL: Final = "IMAGEFLEET_REDIS_URL"
TASK: Final = "stock.render"
BEGUN: Final = "stock:begun"
FINISHED: Final = "stock:finished"
"""Sets of "job run": a resent note of the same run counts once."""
VISIBILITY_S: Final = 6
"""Longer than any task here, and so short that redelivery can be waited for."""
_STEP_S: Final = 0.05
_THREADS: Final = "8"


def create_app(url: str) -> Celery:
    app = Celery("stock", broker=celery_url(url), backend=celery_url(url), set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        result_backend_always_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "unacked_mutex_expire": VISIBILITY_S,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
    patient = connect(url, retries=RETRY_FOREVER)

    @app.task(name=TASK)
    def render(job_id: str, steps: int) -> str:
        run = f"{job_id} {uuid.uuid4().hex}"
        patient.sadd(BEGUN, run)
        time.sleep(steps * _STEP_S)
        patient.sadd(FINISHED, run)
        return job_id

    return app


def stock_worker() -> None:
    options = ["worker", "-P", "threads", "-c", _THREADS, "--without-gossip", "--without-mingle"]
    create_app(os.environ[URL]).worker_main([*options, "--loglevel", "INFO"])


def produce(kind: Producer, orders: Path, journal: Path) -> None:
    app = create_app(os.environ[URL])

    def submit(bundle: list[Order]) -> None:
        [order] = bundle
        steps = order.parameters["num_inference_steps"]
        send_task(app, TASK, args=[order.id, steps], task_id=order.id)

    mine = [order for order in read(orders) if order.producer is kind]
    with journal.open("w") as lines:
        for bundle in due(mine, time.monotonic(), 1):
            if bundle:
                until_accepted(submit, bundle)
                lines.write(f"{bundle[0].id}\n")
                lines.flush()
            else:
                time.sleep(_STEP_S)


if __name__ == "__main__":
    produce(Producer(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
