"""The fake fleet as a test sees it: clients, when jobs run, which of them fail, and callbacks."""

import json
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import fakeredis
import redis

from imagefleet.producer.client.async_client import AsyncClient
from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job
from imagefleet.shared.bulk.redis_keys import index_key
from imagefleet.shared.errors import DeviceError, WorkerError
from imagefleet.shared.jobs.redis_keys import known_queues_key, outbox_messages_key
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.webhooks.outbox_message import OutboxMessage
from imagefleet.testing.fake_worker import FakeWorker
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine

log = logging.getLogger(__name__)

_NAMESPACE: Final = "imagefleet"
_RETENTION_S: Final = 7 * 24 * 3600
_MAX_IMAGES: Final = 64
"""The most images of a job: each job is one batch of the fake engine."""
_PROMPT_CHUNKS: Final = 3
"""The most chunks of a prompt with `prompt_weighting`."""
_POLL_S: Final = 0.01
_UNIQUE_NAMES: Final = "redis.sha1hex = redis.sha1hex or function(text) return text end\n"
"""fakeredis has no `sha1hex`. The scripts need only names that differ where the texts do."""


class FakeFleet:
    """A fake fleet takes the jobs of its clients and ends them, in this process.

    Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        *,
        auto: bool = True,
        folder: str | Path | None = None,
        model: str = "fake",
        shapes: Sequence[tuple[int, int]] = ((64, 64),),
        schedulers: Sequence[str] = ("ddim",),
        max_num_inference_steps: int = 100,
        step_s: float = 0.0,
    ) -> None:
        """Announce a model with its shapes and schedulers, whose first ones are the defaults.

        Args:
            auto: run jobs in a thread as soon as they are submitted. If False, they stay queued
                until `run_next` or `run_all` is called.
            folder: where images are stored. Default: a temporary folder, deleted by `close`.
            shapes: (height, width) in pixels.
            step_s: seconds that each denoising step takes.
        """
        self._resources = ExitStack()
        if folder is None:
            folder = self._resources.enter_context(TemporaryDirectory(prefix="imagefleet-"))
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._settings = Settings.load(
            redis_url="redis://fake-fleet",
            namespace=_NAMESPACE,
            storage_url=Path(folder).absolute().as_uri(),
            retention_s=_RETENTION_S,
        )
        self._server = fakeredis.FakeServer()
        self._redis = self._connect()
        engine = FakeEngine(
            seconds=step_s,
            capacity=_MAX_IMAGES,
            shapes=[Shape(height=height, width=width) for height, width in shapes],
            max_num_inference_steps=max_num_inference_steps,
            prompt_chunks=_PROMPT_CHUNKS,
        )
        names = tuple(schedulers)
        engine.info = replace(engine.info, name=model, schedulers=names, default_scheduler=names[0])
        self._worker = FakeWorker(self._redis, self._settings, engine)
        self._worker_lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_queued, name="fake-worker", daemon=True)
        self.client: Final = Client(settings=self._settings, redis=self._connect())
        """The client of this fleet. `submit` and its other methods are those of a real fleet."""
        self._resources.callback(self.client.close)
        if auto:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def async_client(self) -> AsyncClient:
        """Return a client for asyncio. `close` closes it too."""
        client = AsyncClient(settings=self._settings, redis=self._connect())
        self._resources.callback(client.close)
        return client

    def run_next(self) -> Job | None:
        """Run the queued job whose turn it is, to its end. Return it, or None if none is queued.

        Its turn depends on priority and tenant, as in a real fleet.
        """
        with self._worker_lock:
            job_id = self._worker.run_next()
        return None if job_id is None else Job(id=job_id, client=self.client)

    def run_all(self) -> list[Job]:
        """Run all queued jobs, then all shards of datasets. Return the jobs in the order in which
        they ran."""
        jobs = list(iter(self.run_next, None))
        while self._made_shard():
            pass
        return jobs

    def fail(self, prompt_part: str, code: str = DeviceError.code) -> None:
        """From now on, fail jobs with the error `code` whose prompt contains `prompt_part`.

        They fail at once, as after their last retry, and leave a dead letter.

        Raises:
            InvalidRequest: workers end no job with this code; the error lists the codes.
        """
        self._worker.fail(prompt_part, code)

    def callbacks(self) -> list[dict[str, Any]]:
        """Return the bodies of all callbacks of jobs and datasets so far, the oldest first.

        Nothing is sent. The jobs and datasets must have a `callback_url`.
        """
        texts: Any = self._redis.hvals(outbox_messages_key(_NAMESPACE))
        bodies = [json.loads(OutboxMessage.parse(text).body) for text in texts]
        return sorted(bodies, key=itemgetter("timestamp"))

    def close(self) -> None:
        """Cancel the job that runs, stop, and delete the temporary folder."""
        self._stopping.set()
        self._worker.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._resources.close()

    def _connect(self) -> redis.Redis:
        return _FakeRedis(server=self._server, decode_responses=True)

    def _run_queued(self) -> None:
        while not self._stopping.is_set():
            # A look at the key is much cheaper than a claim.
            has_jobs = self._redis.exists(known_queues_key(_NAMESPACE)) and self._ran_next()
            has_runs = not has_jobs and self._redis.exists(index_key(_NAMESPACE))
            if not (has_jobs or (has_runs and self._made_shard())):
                self._stopping.wait(_POLL_S)

    def _made_shard(self) -> bool:
        with self._worker_lock:
            return self._worker.make_next_shard()

    def _ran_next(self) -> bool:
        """Run the next job. Return False if none is queued, or if it is queued again."""
        try:
            return self.run_next() is not None
        except WorkerError as error:  # the store may work again soon
            log.warning("%s", error)
            return False


class _FakeRedis(fakeredis.FakeRedis):
    """A client of fakeredis that can run all scripts of imagefleet."""

    def register_script(self, script: Any) -> Any:
        return super().register_script(_UNIQUE_NAMES + script)
