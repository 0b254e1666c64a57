"""Define `imagefleet webhooks test`: let a worker send one event, and print what came of it.

The network of the workers and their secrets decide whether callbacks arrive, so the test goes
through the outbox like any callback. It is sent once.
"""

import sys
import time
from collections.abc import Callable
from typing import Final

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo, echo_fields, json_option
from imagefleet.producer.commands.waiting import SECONDS
from imagefleet.producer.connection.outages import deadline_of
from imagefleet.shared.errors import ConfigurationError, InvalidRequest, ResultTimeout
from imagefleet.shared.jobs.addresses import check_http_url
from imagefleet.shared.jobs.model import check_name
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryAttempt,
    DeliveryVerdict,
    OutboxMessage,
)

_POLL_S: Final = 0.1


@client_command
@click.argument("url")
@click.option("--tenant", default="", help="Sign as for the jobs of this tenant.")
@click.option(
    "--timeout",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="Wait at most this many seconds until a worker has sent the event.",
)
@json_option("Print one JSON object.")
def test(client: Client, url: str, tenant: str, timeout: float, as_json: bool) -> None:
    """Send one signed event of the type webhook.test to URL, and print what the receiver answered.

    A living worker sends it, once, with its secrets and from its network. One line: verdict
    (delivered, retry, gone or refused), status and reason, milliseconds, the beginning of the
    answer. A job's callback with the verdict retry would be sent again; the test is not. The exit
    code is 1 unless the receiver answered 2xx.
    """
    message = OutboxMessage.for_test(_checked("url", url, check_http_url), tenant)
    if tenant:
        _checked("tenant", tenant, check_name)
    if not client.workers():
        raise ConfigurationError("no worker is alive, and only workers send callbacks; start one")
    client.outbox.add(message)
    try:
        attempt = _await_attempt(client, message, timeout)
    finally:
        client.outbox.discard_test(message)
    _print_attempt(attempt, as_json=as_json)
    if attempt.verdict is DeliveryVerdict.RETRY:
        echo("a job's callback would be sent again, on the schedule of retries", err=True)
    if client.outbox.is_disabled(url):
        echo(
            "the address answered 410 before, so no other callback is sent to it for a week; "
            "`imagefleet webhooks replay` allows it again",
            err=True,
        )
    sys.exit(0 if attempt.verdict is DeliveryVerdict.DELIVERED else 1)


def _checked(name: str, text: str, check: Callable[[str], str]) -> str:
    """Return `text` if `check` accepts it. Raise InvalidRequest."""
    try:
        return check(text)
    except ValueError as error:
        raise InvalidRequest(name, text, str(error)) from None


def _await_attempt(client: Client, message: OutboxMessage, timeout_s: float) -> DeliveryAttempt:
    """Return the delivery attempt. Raise ResultTimeout."""
    deadline = deadline_of(timeout_s)
    while True:
        attempts = client.outbox.attempts_of(message.job_id)
        if attempts:
            return attempts[0]
        if time.monotonic() >= deadline:
            raise ResultTimeout(
                f"no worker has sent the event within {timeout_s:g} s: all senders for this "
                "receiver are busy, or the name server is slow; see `imagefleet webhooks list`"
            )
        time.sleep(_POLL_S)


def _print_attempt(attempt: DeliveryAttempt, *, as_json: bool) -> None:
    status = "no answer" if attempt.status is None else str(attempt.status)
    fields: dict[str, object] = {
        "verdict": str(attempt.verdict),
        "status": attempt.status if as_json else f"{status} {attempt.reason}".rstrip(),
        "ms": attempt.ms if as_json else f"{attempt.ms} ms",
    }
    if as_json:
        fields["reason"] = attempt.reason
    if as_json or attempt.answer:
        fields["answer"] = attempt.answer
    echo_fields(fields, as_json=as_json)
