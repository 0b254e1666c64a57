"""Start real worker processes beside simulated ones: imagefleet's, and one of plain Celery.

`celery -A benchmarks.simulation.real_workers worker` is the latter. It acknowledges late and stores
results, as Celery's documentation advises for tasks that must not be lost.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from celery import Celery

from imagefleet.shared.redis_client.connection import celery_url

ROOT: Final = Path(__file__).parents[2]
_URL: Final = "IMAGEFLEET_REDIS_URL"
_TASK_S: Final = "STOCK_TASK_S"
_TASK: Final = "stock.render"
_PROMPT: Final = "a lighthouse at night, number 1"


@contextmanager
def imagefleet_worker(url: str, folder: Path, capacity: int, step_s: float) -> Iterator[None]:
    """Run one worker with a fake engine."""
    environment = {
        "IMAGEFLEET_MODEL": f"fake:seconds={step_s},capacity={capacity}",
        "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
        _URL: url,
    }
    with _process([sys.executable, "-m", "imagefleet.worker"], environment, folder):
        yield


@contextmanager
def stock_worker(url: str, folder: Path, threads: int, task_s: float) -> Iterator[None]:
    """Run one worker of plain Celery, whose tasks sleep for `task_s`."""
    app = f"{__name__}:app"
    command = ["celery", "-A", app, "worker", "-P", "threads", "-c", str(threads), "-l", "WARNING"]
    with _process([sys.executable, "-m", *command], {_URL: url, _TASK_S: str(task_s)}, folder):
        yield


def submit_stock(url: str, tasks: int) -> None:
    """Send tasks to the worker of plain Celery."""
    with _stock_app(url) as producer, producer.producer_or_acquire() as channel:
        for _ in range(tasks):
            producer.send_task(_TASK, kwargs={"prompt": _PROMPT}, producer=channel)


@contextmanager
def _process(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        worker.kill()
        worker.wait()


def _stock_app(url: str) -> Celery:
    stock = Celery("stock", broker=celery_url(url), backend=celery_url(url), set_as_current=False)
    stock.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        result_expires=3600,
    )

    def render(prompt: str) -> dict[str, Any]:
        time.sleep(float(os.environ[_TASK_S]))
        return {"images": [{"key": f"jobs/{prompt}/0.png", "sha256": "0" * 64, "size": 400_000}]}

    stock.task(render, name=_TASK)
    return stock


app = _stock_app(os.environ.get(_URL, "redis://localhost"))
