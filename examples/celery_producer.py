"""Submit a job with plain Celery, from a program that does not have imagefleet installed.

Needs `pip install "celery[redis]"` only. Run it against a running fleet:

    export IMAGEFLEET_REDIS_URL=redis://localhost:6379/0
    python examples/celery_producer.py

For a rediss:// address append ?ssl_cert_reqs=required, which Celery demands. Every worker reads the
queue `imagefleet.default.native`; its first part is the fleet's IMAGEFLEET_NAMESPACE. The keyword
arguments are the parameters of docs/client.md. Workers check them, because nobody else does: a
wrong one fails the task.
"""

import os

from celery import Celery

URL = os.environ.get("IMAGEFLEET_REDIS_URL", "redis://localhost:6379/0")

PARAMETERS = {
    "prompt": "a small red circle on the left on a blue background",
    "num_inference_steps": 20,
    "seed": 7,  # if left out, the worker derives the seed from the task id
}


def main() -> None:
    with Celery(broker=URL, backend=URL) as app:
        task = app.send_task(
            "imagefleet.render",
            kwargs=PARAMETERS,
            queue="imagefleet.default.native",
            priority=3,  # 0 (first) to 9 (last)
        )
        result = task.get(timeout=300)
    print(f"{task.id}: {result['images'][0]['url']}")


if __name__ == "__main__":
    main()
