"""Register the Celery tasks. They only call `JobExecutor.execute` and `Lifecycle.make_shard`."""

from datetime import UTC, datetime
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore
from celery.worker.request import Request

from imagefleet.shared.errors import ImagefleetError, JobCancelled, LeaseLost
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME
from imagefleet.worker.celery_app.results import message_end
from imagefleet.worker.startup.lifecycle import Lifecycle


def add_bulk_task(app: Celery, lifecycle: Lifecycle) -> None:
    """Register `imagefleet.bulk_shard` on `app`."""

    @app.task(name=BULK_TASK_NAME, bind=True, acks_late=True, ignore_result=True)
    def bulk_shard(self: Task, /, **arguments: Any) -> None:
        try:
            lifecycle.make_shard(arguments, self.request.properties["delivery_tag"])
        except LeaseLost as error:
            raise Ignore from error


def add_render_task(app: Celery, lifecycle: Lifecycle) -> None:
    """Register `imagefleet.render` on `app`."""

    @app.task(
        name=TASK_NAME,
        bind=True,
        acks_late=True,
        resultrepr_maxsize=64,
        throws=(ImagefleetError,),  # Celery then logs one line instead of a traceback
        Request=_end_before_ack(lifecycle),
    )
    def render(self: Task, /, **_: Any) -> dict[str, Any]:
        job_id, tag = self.request.id, self.request.properties["delivery_tag"]
        lane = lifecycle.parts.jobs.of(tag)
        end = message_end(self, lane.claims, tag)
        try:
            result = lane.executor.execute(job_id, tag, end)
        except JobCancelled as error:
            self.backend.mark_as_revoked(job_id, str(error), request=self.request)
            raise Ignore from error
        except LeaseLost as error:
            raise Ignore from error
        if end is not None and end.happened:
            self.request.ignore_result = True  # it is stored already
        return result.model_dump(mode="json")


def _end_before_ack(lifecycle: Lifecycle) -> type[Request]:
    """Return a request class that ends the record of a revoked or expired job, then acknowledges.

    Celery does nothing to the record: a worker killed after the acknowledgement would leave a
    record that never ends.
    """

    class EndBeforeAckRequest(Request):
        def maybe_expire(self) -> bool:
            """Return whether the message has expired. Celery's own method would also revoke the id
            for hours, and so every later job that has it."""
            zone = UTC if self.expires.tzinfo else None
            return bool(datetime.now(zone) > self.expires)

        def _announce_revoked(self, *how: Any) -> None:
            lane = lifecycle.parts.jobs.of(self.message.delivery_tag)
            if not lane.executor.end_revoked(self.id, self.message):
                self._ignore_result = True  # what Celery keeps under this id is of another job
            super()._announce_revoked(*how)

    return EndBeforeAckRequest
