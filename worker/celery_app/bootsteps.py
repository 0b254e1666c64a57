"""Start and stop imagefleet within a Celery worker, by Celery's bootsteps."""

import os
import signal
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool
from celery.signals import worker_shutting_down
from celery.worker.components import Pool
from celery.worker.consumer.tasks import Tasks

from imagefleet.shared.errors import ConfigurationError, ImagefleetError
from imagefleet.shared.text.printable import mask_credentials, printable
from imagefleet.worker.celery_app.masked_stats import mask_stats
from imagefleet.worker.celery_app.remote_control import control_step
from imagefleet.worker.celery_app.results import store_rejection
from imagefleet.worker.celery_app.stop_signals import install_stop_signals
from imagefleet.worker.process.end_signals import is_ignored
from imagefleet.worker.process.exit_codes import exit_code_of
from imagefleet.worker.startup.lifecycle import Lifecycle
from imagefleet.worker.startup.served_queues import queue_groups

_MAX_LINE = 10_000


def install_steps(app: Celery, lifecycle: Lifecycle) -> None:
    """Add the bootsteps to `app`, so that its workers own the devices and claim messages."""
    app.steps["worker"].add(_devices_step(lifecycle, ignore_hangup=is_ignored(signal.SIGHUP)))
    app.steps["consumer"].add(_dispatcher_step(lifecycle))
    if not lifecycle.settings.in_cluster:
        app.steps["consumer"].add(control_step(lifecycle))

    @worker_shutting_down.connect(weak=False)
    def stop_claiming(how: str, **_: Any) -> None:
        if how == "Warm":
            lifecycle.stop_claiming()  # now: Celery's loop may need a second to react to the signal
        else:
            lifecycle.quit()


def _devices_step(lifecycle: Lifecycle, *, ignore_hangup: bool) -> type[bootsteps.StartStopStep]:
    class DevicesStep(bootsteps.StartStopStep):
        """The step loads and compiles the model before Celery connects, and drains the worker
        before Celery's pool stops. So nothing is claimed before the worker is ready, and every way
        to stop it drains."""

        name = "imagefleet.devices"
        requires = (Pool,)

        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            mask_stats(worker)

        def start(self, worker: Any) -> None:
            install_stop_signals(lifecycle, ignore_hangup=ignore_hangup)
            try:
                if worker.pool_cls is not TaskPool:
                    raise ConfigurationError("the devices need one process: start with -P threads")
                lifecycle.start(_named_queues(worker.app, worker.app.amqp.queues.consume_from))
                _settle_requests(worker.pool, lifecycle)
            except ImagefleetError as error:
                _exit_with(error)

        def stop(self, worker: Any) -> None:
            lifecycle.leave()
            lifecycle.drain()

        terminate = stop

    return DevicesStep


def _exit_with(error: ImagefleetError) -> None:
    """End the process with the sentence and the exit code of an error."""
    # Celery has put a logger in the place of sys.stderr.
    sentence = printable(mask_credentials(f"imagefleet-worker: {error}"), _MAX_LINE)
    print(sentence, file=sys.__stderr__, flush=True)
    os._exit(exit_code_of(error))  # a half-started runtime may block a normal exit


def _named_queues(app: Celery, queues: Iterable[str]) -> list[str] | None:
    """Return the queues of Celery's option `-Q`, or None if there are only those that Celery reads
    without it."""
    names = list(queues)
    return None if names == [app.conf.task_default_queue] else names


def _settle_requests(pool: TaskPool, lifecycle: Lifecycle) -> None:
    """Let the dispatcher know when the pool has finished with a request.

    Celery drops an error of its own code that a thread of the pool raises. It would neither
    acknowledge the message nor say anything.
    """
    apply = pool.on_apply

    def on_apply(target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        result = apply(target, args, kwargs, **options)
        tag = args[2]["properties"]["delivery_tag"]

        def settle(future: Future[Any]) -> None:
            if not future.cancelled():  # else the worker stops, and requeues what it holds
                lifecycle.parts.dispatcher.settle(tag, future.exception())

        result.f.add_done_callback(settle)
        return result

    pool.on_apply = on_apply


def _store_refusals(lifecycle: Lifecycle, backend: Any) -> None:
    """Let those who wait for results of Celery know what this worker refuses."""
    for lane in lifecycle.parts.jobs:
        lane.starter.refuser.on_job_failed = backend.mark_as_failure
        lane.starter.refuser.on_task_rejected = partial(store_rejection, backend)


def _dispatcher_step(lifecycle: Lifecycle) -> type[bootsteps.StartStopStep]:
    class DispatcherStep(bootsteps.StartStopStep):
        """The step takes the queues from kombu's consumer before its first read and gives them to
        the dispatcher."""

        name = "imagefleet.dispatcher"
        requires = (Tasks,)

        def __init__(self, consumer: Any, **kwargs: Any) -> None:
            super().__init__(consumer, **kwargs)
            self._send_to_pool = consumer.on_task_request
            consumer.on_task_request = lambda request: lifecycle.parts.dispatcher.accept(request)

        def start(self, consumer: Any) -> None:
            queues = [queue.name for queue in consumer.task_consumer.queues]
            for queue in queues:
                consumer.task_consumer.cancel_by_queue(queue)
            groups = queue_groups(
                _named_queues(consumer.app, queues),
                lifecycle.parts.engine.info,
                lifecycle.settings.namespace,
                default=lifecycle.settings.serves_default,
            )
            dispatcher = lifecycle.parts.dispatcher
            dispatcher.attach(groups, consumer.strategies, self._send_to_pool)
            if not lifecycle.settings.in_cluster:
                _store_refusals(lifecycle, consumer.app.backend)
            try:
                lifecycle.take_work()
            except ConfigurationError as error:
                _exit_with(error)

    return DispatcherStep
