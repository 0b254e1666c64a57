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
from imagefleet.worker.exits import Exit
from imagefleet.worker.host import Host
from imagefleet.worker.serving import queue_groups


def install(app: Celery, host: Host) -> None:
    """Make every worker of `app` own the devices and claim its own work."""
    app.steps["worker"].add(_devices_of(host))
    app.steps["consumer"].add(_intake_of(host))

    @worker_shutting_down.connect(weak=False)
    def stop_taking(how: str, **_: Any) -> None:
        if how == "Warm":
            host.stop_taking()  # at the signal; Celery's loop may need a second to notice it
        else:
            host.quit()


def _devices_of(host: Host) -> type[bootsteps.StartStopStep]:
    class Devices(bootsteps.StartStopStep):
        """Load and compile before Celery connects, so that nothing is taken before ready; drain
        before its pool stops, whichever way the worker ends."""

        name = "imagefleet.devices"
        requires = (Pool,)

        def start(self, worker: Any) -> None:
            try:
                if worker.pool_cls is not TaskPool:
                    raise ConfigurationError("the devices need one process: start with -P threads")
                host.start()
            except ImagefleetError as error:
                # Celery has put a logger in the place of sys.stderr.
                print(f"imagefleet-worker: {error}", file=sys.__stderr__, flush=True)
                os._exit(Exit.MISCONFIGURED)  # half-started device runtimes do not always let go

        def stop(self, worker: Any) -> None:
            host.drain()

        terminate = stop

    return Devices


def _intake_of(host: Host) -> type[bootsteps.StartStopStep]:
    class Intake(bootsteps.StartStopStep):
        """Take the queues over from kombu between its consumer's creation and its first read."""

        name = "imagefleet.intake"
        requires = (Tasks,)

        def __init__(self, consumer: Any, **kwargs: Any) -> None:
            super().__init__(consumer, **kwargs)
            self._pass_on = consumer.on_task_request
            consumer.on_task_request = lambda request: host.intake.accept(request)

        def start(self, consumer: Any) -> None:
            asked = [queue.name for queue in consumer.task_consumer.queues]
            for queue in asked:
                consumer.task_consumer.cancel_by_queue(queue)
            by_default = asked == [consumer.app.conf.task_default_queue]
            groups = queue_groups(
                None if by_default else asked, host.engine.info, host.settings.namespace
            )
            host.intake.attach(groups, consumer.strategies, self._pass_on)
            host.take_work()

    return Intake
