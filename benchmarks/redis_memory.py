"""Measure how much memory of Redis a waiting job takes, by key, beside a plain Celery message.

`python -m benchmarks.redis_memory` starts its own Redis, submits jobs with a prompt of 90 letters
through the client, and asks Redis with MEMORY USAGE for each key. The peer is what Celery's own
`send_task` writes for the same request, in the same run: a message, and no record of the job.

It does not show what Redis needs for replicas and its append-only file, nor records of jobs that
have ended, which hold a result.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from celery import Celery

from benchmarks.report import parser_of, print_json
from imagefleet import Client
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.redis_client.connection import celery_url, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer

LETTERS: Final = 90
CASES: Final[dict[str, dict[str, Any]]] = {
    "prompt": {},
    "prompt_and_parameters": {
        "negative_prompt": "blurry, low quality, watermark",
        "num_inference_steps": 30,
        "guidance_scale": 7.5,
        "height": 64,
        "width": 64,
        "model": "shapes",
    },
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--jobs", type=int, default=2_000, help="Jobs that wait in each case.")
    jobs: int = parser.parse_args().jobs
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, LocalRedisServer(Path(name)) as server:
        for case, parameters in CASES.items():
            figures |= waiting_jobs(server, jobs, case, parameters)
            figures[f"{case}.celery_message"] = celery_messages(server, jobs, case, parameters)
    for figure, value in figures.items():
        print(f"{figure:44} {value:8,.0f}")
    print_json("redis_memory", {figure: round(value) for figure, value in figures.items()})


def waiting_jobs(
    server: LocalRedisServer, jobs: int, case: str, parameters: dict[str, Any]
) -> dict[str, float]:
    """Return the bytes of a job: of its record, its message, and both."""
    with Client(server.url, namespace=case) as producer:
        producer.submit_many([_prompt(number) for number in range(jobs)], **parameters)
    record, message = (_memory(server, f"{case}{kind}*") / jobs for kind in (":job:", "."))
    return {
        f"{case}.record": record,
        f"{case}.message": message,
        f"{case}.both": record + message,
    }


def celery_messages(
    server: LocalRedisServer, jobs: int, case: str, parameters: dict[str, Any]
) -> float:
    """Return the bytes of a message that Celery writes for such a job."""
    queue = f"celery-{case}"
    with Celery(broker=celery_url(server.url), set_as_current=False) as app:
        for number in range(jobs):
            app.send_task(TASK_NAME, kwargs={"prompt": _prompt(number), **parameters}, queue=queue)
    return _memory(server, queue) / jobs


def _prompt(number: int) -> str:
    start = f"picture {number} of "
    return start + "x" * (LETTERS - len(start))


def _memory(server: LocalRedisServer, pattern: str) -> int:
    client = connect(server.url)
    return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(pattern))


if __name__ == "__main__":
    main()
