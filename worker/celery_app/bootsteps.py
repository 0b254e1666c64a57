"""Where imagefleet sits in a Celery worker's start and stop."""

import os
import sys
from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool
from celery.signals import worker_shutting_down
from celery.worker.components import Pool
from celery.worker.consumer.tasks import Tasks

from imagefleet.shared.errors import ConfigurationError, ImagefleetError
from imagefleet.worker.lifecycle import Lifecycle
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.queues.subscriptions import queue_groups


def install(app: Celery, lifecycle: Lifecycle) -> None:
    """Make every worker of `app` own the devices and claim its own work."""
    app.steps["worker"].add(_devices_of(lifecycle))
    app.steps["consumer"].add(_intake_of(lifecycle))

    @worker_shutting_down.connect(weak=False)
    def stop_taking(how: str, **_: Any) -> None:
        if how == "Warm":
            lifecycle.stop_taking()  # at the signal; Celery's loop may need a second to notice it
        else:
            lifecycle.quit()


def _devices_of(lifecycle: Lifecycle) -> type[bootsteps.StartStopStep]:
    class DevicesStep(bootsteps.StartStopStep):
        """Load and compile before Celery connects, so that nothing is taken before ready; drain
        before its pool stops, whichever way the worker ends."""

        name = "imagefleet.devices"
        requires = (Pool,)

        def start(self, worker: Any) -> None:
            try:
                if worker.pool_cls is not TaskPool:
                    raise ConfigurationError("the devices need one process: start with -P threads")
                lifecycle.start()
            except ImagefleetError as error:
                # Celery has put a logger in the place of sys.stderr.
                print(f"imagefleet-worker: {error}", file=sys.__stderr__, flush=True)
                os._exit(ExitCode.CONFIG)  # half-started device runtimes do not always let go

        def stop(self, worker: Any) -> None:
            lifecycle.drain()

        terminate = stop

    return DevicesStep


def _intake_of(lifecycle: Lifecycle) -> type[bootsteps.StartStopStep]:
    class DispatcherStep(bootsteps.StartStopStep):
        """Take the queues over from kombu between its consumer's creation and its first read."""

        name = "imagefleet.intake"
        requires = (Tasks,)

        def __init__(self, consumer: Any, **kwargs: Any) -> None:
            super().__init__(consumer, **kwargs)
            self._pass_on = consumer.on_task_request
            consumer.on_task_request = lambda request: lifecycle.parts.dispatcher.accept(request)

        def start(self, consumer: Any) -> None:
            asked = [queue.name for queue in consumer.task_consumer.queues]
            for queue in asked:
                consumer.task_consumer.cancel_by_queue(queue)
            by_default = asked == [consumer.app.conf.task_default_queue]
            groups = queue_groups(
                None if by_default else asked,
                lifecycle.parts.engine.info,
                lifecycle.settings.namespace,
            )
            lifecycle.parts.dispatcher.attach(groups, consumer.strategies, self._pass_on)
            lifecycle.take_work()

    return DispatcherStep
