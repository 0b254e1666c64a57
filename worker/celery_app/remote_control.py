"""Answer those commands of Celery's remote control that a fleet needs, and refuse all others.

Celery's own mailbox runs every command of everybody on the same Redis: one of them stops a queue,
another takes more of it, and a message that kombu cannot read ends the worker. Here commands come
from the own namespace only, are read strictly, and none ends or changes a worker, but for
`shutdown`, which drains it as SIGTERM does.

Input: publications on the channel `<namespace>.pidbox`. Output: answers in Celery's form.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from celery import bootsteps
from celery.worker import state as celery_state
from celery.worker.consumer.tasks import Tasks
from celery.worker.control import Panel
from celery.worker.pidbox import Pidbox

from imagefleet.shared.errors import InvalidRequest, UnknownJob, UnreadableRecord
from imagefleet.shared.jobs.model import check_job_id
from imagefleet.shared.text.printable import printable
from imagefleet.worker.celery_app.control_message import ControlMessage, read_message
from imagefleet.worker.startup.lifecycle import Lifecycle

log = logging.getLogger(__name__)

_INSPECT: Final[Mapping[str, tuple[str, type] | None]] = {
    "active": ("safe", bool),
    "active_queues": None,
    "clock": None,
    "conf": ("with_defaults", bool),
    "ping": None,
    "query_task": ("ids", list),
    "registered": ("builtins", bool),
    "report": None,
    "reserved": None,
    "revoked": None,
    "scheduled": None,
    "stats": None,
}
"""Celery's own commands that only look, with the argument that each takes and its type."""
COMMANDS: Final = (*_INSPECT, "revoke", "shutdown")
"""Every command that a worker follows."""
_FROM_MONITORS: Final = ("disable_events", "enable_events", "heartbeat")
"""Flower sends these every few seconds. They are refused without a line in the log."""
_MAX_REVOKED: Final = 1_000
_WARN_EVERY_S: Final = 10.0

Reply = Mapping[str, Any] | list[Any] | None


def control_step(lifecycle: Lifecycle) -> type[bootsteps.StartStopStep]:
    """Return the step that takes the place of Celery's `Control`, which the settings switch off."""

    class ControlStep(bootsteps.StartStopStep):
        """The step listens for commands while the worker is connected."""

        name = "imagefleet.remote_control"
        requires = (Tasks,)

        def __init__(self, consumer: Any, **kwargs: Any) -> None:
            super().__init__(consumer, **kwargs)
            mailbox = CommandMailbox(consumer, lifecycle)
            self.start, self.stop, self.shutdown = mailbox.start, mailbox.stop, mailbox.shutdown

    return ControlStep


class CommandMailbox(Pidbox):
    """The mailbox subscribes as Celery's does, but reads, checks and answers messages itself."""

    def __init__(self, consumer: Any, lifecycle: Lifecycle) -> None:
        super().__init__(consumer)
        self._lifecycle = lifecycle
        self._commands: dict[str, Callable[[dict[str, Any]], Reply]] = {
            **{name: partial(self._inspect, name) for name in _INSPECT},
            "revoke": self._revoke,
            "shutdown": self._shut_down,
        }
        self._warned_at = float("-inf")
        self._unsaid = 0

    def start(self, consumer: Any) -> None:
        """Subscribe on a channel of its own. Raises kombu's errors of the connection."""
        super().start(consumer)
        channel = self.node.channel
        channel._receive_one = partial(self._receive_one, channel)

    def _receive_one(self, channel: Any, subscriber: Any) -> bool:
        """Read one publication, in the place of kombu's method, which fails on a malformed one."""
        try:
            response = subscriber.parse_response()
        except channel.connection_errors:
            channel._in_listen = None
            raise
        if not isinstance(response, (list, tuple)):
            return False
        payload = channel._handle_message(subscriber, response)
        if payload["type"] not in (b"message", b"pmessage"):
            return False
        self._follow(payload["data"])
        return True

    def _follow(self, data: bytes) -> None:
        try:
            message = read_message(data)
        except ValueError as error:
            self._warn(f"a message of the remote control is dropped: {error}")
            return
        if not message.is_for(self.hostname):
            return
        try:
            reply = self._run(message)
        except (ValueError, InvalidRequest) as error:
            if message.method not in _FROM_MONITORS:
                self._warn(f"remote control: {error}")
            reply = {"error": str(error)}
        except Exception as error:
            log.exception("the command %s of the remote control failed", printable(message.method))
            reply = {"error": repr(error)}
        self._answer(message, reply)

    def _run(self, message: ControlMessage) -> Reply:
        """Follow a command. Raises ValueError or InvalidRequest where it is refused."""
        command = self._commands.get(message.method)
        if command is None:
            raise ValueError(
                f"this worker does not follow {printable(message.method, 100)!r}, but only "
                f"{', '.join(COMMANDS)}"
            )
        return command(message.arguments or {})

    def _inspect(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Let Celery's own command of this name look at the worker."""
        taken = _INSPECT[name]
        given = {key: value for key, value in arguments.items() if value not in (None, [], {})}
        for key, value in given.items():
            if taken is None or key != taken[0] or not isinstance(value, taken[1]):
                raise ValueError(f"{name} does not take {printable(f'{key}={value!r}', 100)}")
        if name == "query_task":
            given = {"ids": [check_job_id(each) for each in arguments.get("ids") or []]}
        reply: Reply = Panel.data[name](self.node.state, **given)
        return reply

    def _revoke(self, arguments: dict[str, Any]) -> Reply:
        """Cancel jobs, waiting or running: `terminate` makes no difference.

        A message of plain Celery has no record before a worker claims it. Each worker remembers
        such an id, as Celery does, and ends the job when it claims the message.
        """
        given = arguments.get("task_id")
        ids = given if isinstance(given, list) else [given]
        if len(ids) > _MAX_REVOKED:
            raise ValueError(f"revoke: {len(ids)} ids; at most {_MAX_REVOKED} are taken at once")
        return {"ok": "; ".join(map(self._cancel, map(check_job_id, ids))) or "no job was named"}

    def _cancel(self, job_id: str) -> str:
        try:
            [lane] = self._lifecycle.parts.jobs  # no fleet in a cluster has a remote control
            return f"{job_id}: {lane.executor.cancel(job_id)}"
        except UnknownJob:
            celery_state.revoked.add(job_id)
            return f"{job_id}: not known yet; it is cancelled when a worker claims it"
        except UnreadableRecord as error:
            return str(error)

    def _shut_down(self, arguments: dict[str, Any]) -> Reply:
        """Drain this worker, whatever the arguments are."""
        self._lifecycle.request_drain()
        return {"ok": "this worker drains, then it ends"}

    def _answer(self, message: ControlMessage, reply: Reply) -> None:
        """Send an answer, but only where the senders of this namespace wait for answers."""
        to = message.reply_to
        if to is None or to.exchange != self.node.mailbox.reply_exchange.name:
            return
        try:
            self.node.reply({self.hostname: reply}, to.exchange, to.routing_key, message.ticket)
        except Exception as error:  # the sender waits for a limited time only, and asks again
            self._warn(f"an answer of the remote control was not sent: {error}")

    def _warn(self, sentence: str) -> None:
        """Log a warning, at most one in `_WARN_EVERY_S`: anybody can send many messages."""
        now = time.monotonic()
        if now - self._warned_at < _WARN_EVERY_S:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        log.warning("%s%s", printable(sentence), more)
        self._warned_at, self._unsaid = now, 0
