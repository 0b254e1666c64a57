"""The same jobs on Celery's own Redis transport, configured as Celery's documentation advises.

`python -m tests.chaos.stock_app KIND JOBS JOURNAL` runs a producer. Each finished run of a task is
recorded in a set, which stands for the callback that a customer would get.
"""

import os
import sys
import time
import uuid
from pathlib import Path
from typing import Final

from celery import Celery

from imagefleet.shared.redis_client.connection import RETRY_FOREVER, celery_url, connect
from tests.chaos.planned_jobs import PlannedJob, ProducerKind, read
from tests.chaos.producer_process import due_jobs, send_task, submit_until_accepted

URL: Final = "IMAGEFLEET_REDIS_URL"
TASK: Final = "stock.render"
STARTED: Final = "stock:begun"
FINISHED: Final = "stock:finished"
"""A set of "job run", as `STARTED` is. A repeated command for the same run counts once."""
VISIBILITY_S: Final = 6
"""Seconds. Longer than any task here, and short enough to wait for redelivery."""
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
    client = connect(url, retries=RETRY_FOREVER)

    @app.task(name=TASK)
    def render(job_id: str, steps: int) -> str:
        run = f"{job_id} {uuid.uuid4().hex}"
        client.sadd(STARTED, run)
        time.sleep(steps * _STEP_S)
        client.sadd(FINISHED, run)
        return job_id

    return app


def run_stock_worker() -> None:
    options = ["worker", "-P", "threads", "-c", _THREADS, "--without-gossip", "--without-mingle"]
    create_app(os.environ[URL]).worker_main([*options, "--loglevel", "INFO"])


def produce(kind: ProducerKind, planned: Path, journal: Path) -> None:
    app = create_app(os.environ[URL])

    def submit(jobs: list[PlannedJob]) -> None:
        [job] = jobs
        steps = job.parameters["num_inference_steps"]
        send_task(app, TASK, args=[job.id, steps], task_id=job.id)

    mine = [job for job in read(planned) if job.producer is kind]
    with journal.open("w") as lines:
        for jobs in due_jobs(mine, time.monotonic(), 1):
            if jobs:
                submit_until_accepted(submit, jobs)
                lines.write(f"{jobs[0].id}\n")
                lines.flush()
            else:
                time.sleep(_STEP_S)


if __name__ == "__main__":
    produce(ProducerKind(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
