"""`bulk wait --notify-command` runs a command for each event, and ends as without it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imagefleet import Client
from imagefleet.producer.commands.cli import main
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import StartWorker

PROMPTS = [*(f"prompt {n}" for n in range(39)), "a [fail] prompt"]


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    """A worker makes 40 images a second, and counts them five times a second."""
    fake = {
        "IMAGEFLEET_MODEL": "fake:seconds=0.1,capacity=4",
        "IMAGEFLEET_BULK_CHECKPOINT_S": "0.2",
    }
    return {**settings, **fake}


@pytest.fixture
def connection(redis_server: LocalRedisServer, namespace: str) -> list[str]:
    return ["--redis-url", redis_server.url, "--namespace", namespace]


def _wait(run: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["bulk", "wait", run, *options])


def test_each_event_runs_the_command_and_the_exit_code_stays(
    start: StartWorker, producer: Client, connection: list[str], tmp_path: Path
) -> None:
    start()
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    events = tmp_path / "events"
    command = f"sh -c 'cat >> \"$0\"; echo said; exit 7' {events}"
    done = _wait(run.id, *connection, "--notify-command", command, "--json")
    assert done.exit_code == 3  # an image failed
    assert json.loads(done.stdout)["failed_images"] == 1
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [each["data"]["sequence"] for each in told] == [*range(1, len(told) + 1)]
    assert (told[-1]["type"], told[-1]["data"]["images"]) == ("run.ended", 39)
    assert told[-1]["data"]["id"] == run.id
    assert done.stderr.count("said\n") == len(told)
    assert "--notify-command failed for run.ended: exit code 7\n" in done.stderr
    again = _wait(str(tmp_path / "data"), *connection, "--notify-command", command)
    assert (again.exit_code, events.read_text().count("run.ended")) == (3, 2)


def test_the_command_that_starts_a_run_tells_too(
    start: StartWorker, connection: list[str], tmp_path: Path
) -> None:
    start()
    table, events = tmp_path / "prompts.txt", tmp_path / "events"
    table.write_text("\n".join(PROMPTS[:4]))
    command = ["bulk", "run", str(table), str(tmp_path / "data"), *connection]
    command += ["--notify-command", f"sh -c 'cat >> \"$0\"' {events}"]
    refused = CliRunner().invoke(main, [*command, "--no-wait"])
    assert (refused.exit_code, "--notify-command needs --wait" in refused.output) == (2, True)
    assert not (tmp_path / "data").exists()
    made = CliRunner().invoke(main, command)
    assert made.exit_code == 0, made.output
    last = json.loads(events.read_text().splitlines()[-1])
    assert (last["type"], last["data"]["images"]) == ("run.ended", 4)


def test_a_run_that_nobody_makes_is_reported_as_stalled(
    producer: Client, connection: list[str], tmp_path: Path
) -> None:
    """No worker lives, so none could report it."""
    run = producer.bulk(PROMPTS[:2], tmp_path / "data", model="fake")
    events = tmp_path / "events"
    command = f"sh -c 'cat >> \"$0\"' {events}"
    options = ["--stalled-after", "1", "--timeout", "5", "--notify-command", command]
    done = _wait(run.id, *connection, *options)
    assert done.exit_code == 1
    assert f"run {run.id} has not ended after 5 s; it continues" in done.output
    [event] = [json.loads(line) for line in events.read_text().splitlines()]
    assert (event["type"], event["data"]["shards_by_state"]["queued"]) == ("run.stalled", 1)


def test_a_command_that_cannot_run_is_refused_before_the_wait(
    producer: Client, connection: list[str], tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS[:2], tmp_path / "data", model="fake")
    done = _wait(run.id, *connection, "--notify-command", "no-such-program x")
    assert (done.exit_code, "there is no program 'no-such-program' here" in done.output) == (
        2,
        True,
    )
