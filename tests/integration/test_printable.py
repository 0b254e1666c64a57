"""Text that a receiver, a producer or a bucket chose reaches no terminal and no log unescaped."""

import json
import socket
import threading
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result
from rich.console import Console

from imagefleet.producer.bulk.progress_view import Rates, render
from imagefleet.producer.commands.cli import main
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.webhooks.sender import Sender
from tests.support.datasets import planned_dataset
from tests.support.processes import StartWorker, until

ESCAPE = "\x1b[31m"


def _run(server: LocalRedisServer, namespace: str, *arguments: str) -> Result:
    options = ["--redis-url", server.url, "--namespace", namespace]
    return CliRunner().invoke(main, [*arguments, *options])


def _is_printable(output: str) -> bool:
    return not any(each in output for each in "\x1b\r\x9b\u202e\x07")


def test_verify_reports_stray_files_with_brackets_and_control_characters(
    redis_server: LocalRedisServer, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, ["a cat"])
    for folder, name in [("99999.[red]x[", "b]"), ("99998.x", f"{ESCAPE}[red]\r\u202e")]:
        (dataset.folder / folder).mkdir()
        (dataset.folder / folder / name).write_bytes(b"")
    result = _run(redis_server, namespace, "bulk", "verify", str(dataset.folder))
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "2 unplanned files" in result.stdout
    shown = "".join(result.stdout.split())
    assert "99999.[red]x[/b]" in shown
    assert r"99998.x/\x1b[31m[" in shown
    assert _is_printable(result.output)


def test_a_run_whose_record_holds_markup_is_shown(
    client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, ["a cat"])
    dataset.send()
    status = dataset.runs.get(dataset.run.id)
    hostile = f"[/x]{ESCAPE}\u202e\r"
    changed = status.model_copy(
        update={
            "destination": f"{status.destination}{hostile}",
            "images_by_worker": {hostile: 1},
            "failures_by_reason": {hostile: 1},
        }
    )
    output = StringIO()
    Console(file=output, width=300).print(render(changed, Rates(0.0, changed)))
    assert output.getvalue().count(r"[/x]\x1b[31m\u202e\r") == 3
    assert _is_printable(output.getvalue())


def _answer(listener: socket.socket, answer: bytes) -> None:
    with suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)


def test_the_reason_phrase_of_a_receiver_is_escaped(
    redis_server: LocalRedisServer, client: redis.Redis, namespace: str
) -> None:
    answer = b"HTTP/1.1 500 \x1b[31mred\x9b\x85" + b"x" * 1000 + b"\r\ncontent-length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener, answer))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        message = OutboxMessage(id="cat-1.failed", job_id="cat-1", url=url, body="{}")
        outcome = Sender(WebhookSecrets(), AllowList.parse(["127.0.0.1"])).send(message)
        thread.join()
    assert outcome.status == 500
    assert outcome.reason.startswith(r"\x1b[31mred")
    assert len(outcome.reason) <= 200
    outbox = Outbox(client, namespace)
    outbox.add(message)
    outbox.retry(message, 60, outcome)
    result = _run(redis_server, namespace, "webhooks", "list")
    assert r"500 \x1b[31mred" in result.stdout
    assert _is_printable(result.output)


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_what_an_older_worker_stored_unescaped_is_escaped_when_it_is_shown(
    redis_server: LocalRedisServer, client: redis.Redis, namespace: str, option: tuple[str, ...]
) -> None:
    outbox = Outbox(client, namespace)
    message = OutboxMessage(id="cat-1.failed", job_id="cat-1", url="http://x/", body="{}")
    reason = f"{ESCAPE}\x9b31m\u202e\r"
    outbox.add(message)
    outbox.retry(message, 60, DeliveryOutcome(verdict=DeliveryVerdict.RETRY, reason=reason))
    result = _run(redis_server, namespace, "webhooks", "list", *option)
    assert result.exit_code == 0
    assert _is_printable(result.output)
    if option:
        assert json.loads(result.stdout)["last"]["reason"] == reason


def test_an_error_of_a_command_is_one_printable_line(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    result = _run(redis_server, namespace, "bulk", "cancel", f"{ESCAPE}\r\u202e")
    assert result.exit_code == 1
    assert _is_printable(result.output)
    assert len(result.output.splitlines()) == 1


def test_the_log_of_a_worker_holds_no_control_characters(
    start: StartWorker, client: redis.Redis, namespace: str
) -> None:
    worker = start()
    worker.await_log("ready after")
    headers = {"task": f"{ESCAPE}x\rforged", "id": f"{ESCAPE}\n\x9b", "shadow": ESCAPE}
    for content_type, task in [
        (ESCAPE, headers["task"]),
        ("application/json", "imagefleet.render"),
    ]:
        message = {
            "body": "W10=",
            "content-type": content_type,
            "content-encoding": f"{ESCAPE}\x9b",
            "headers": {**headers, "task": task},
            "properties": {"delivery_tag": ESCAPE, "delivery_info": {}, "body_encoding": "base64"},
        }
        client.lpush(f"{namespace}.default.native", json.dumps(message))
    until(lambda: client.zcard(f"{namespace}:dead") == 2)
    worker.terminate()
    assert "dead letters" in worker.output()
    assert _is_printable(worker.output())
    shown = CliRunner().invoke(
        main, ["dead-letters", "list", "--namespace", namespace, "--redis-url", _url(client)]
    )
    assert shown.exit_code == 0, shown.output
    assert _is_printable(shown.output)


def _url(client: redis.Redis) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}"
