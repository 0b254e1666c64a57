"""Our request class for Celery ends the record of a job before it acknowledges the message."""

import json
from datetime import UTC, datetime, timedelta

from celery import Celery
from kombu.message import Message

from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.worker.celery_app.tasks import add_render_task


class RecordingLifecycle:
    """A replacement for `Lifecycle` that records the calls it gets."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.parts = self
        self.jobs = self
        self.executor = self

    def of(self, tag: str) -> "RecordingLifecycle":
        return self

    def end_revoked(self, job_id: str, message: Message) -> bool:
        self.events.append(("record ended", job_id, message.delivery_tag))
        return True

    def acknowledge(self, *_: object) -> None:
        self.events.append(("acknowledged",))


def test_the_record_of_an_expired_job_ends_before_its_message_is_acknowledged() -> None:
    lifecycle = RecordingLifecycle()
    with Celery(broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        add_render_task(app, lifecycle)  # type: ignore[arg-type]
        task = app.tasks[TASK_NAME]
        past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        message = Message(
            body=json.dumps([[], {}, {}]),
            delivery_tag="7",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"id": "j", "task": TASK_NAME, "expires": past},
            properties={"delivery_tag": "7"},
            delivery_info={},
        )
        request = task.Request(message, app=app, task=task, on_ack=lifecycle.acknowledge)
        assert request.revoked()
    assert lifecycle.events == [("record ended", "j", "7"), ("acknowledged",)]
