"""The commands as a shell runs them: output, exit codes, one line for an error."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from imagefleet import Client
from imagefleet.shared.jobs.model import JobResult
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import leases_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import ROOT
from tests.support.records import start_attempt

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(redis_server: LocalRedisServer, namespace: str) -> Run:
    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        command, *rest = arguments
        place = ["--redis-url", redis_server.url, "--namespace", namespace]
        return subprocess.run(
            [sys.executable, "-m", "imagefleet.producer", command, *place, *rest],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )

    return run


def test_submitted_jobs_can_be_asked_for_and_withdrawn(run: Run) -> None:
    assert run("submit", "a red star", "--id", "cat-1", "--seed", "7").stdout == "cat-1\n"
    assert run("status", "cat-1").stdout == "cat-1  queued\n"
    assert '"seed":7' in run("status", "cat-1", "--json").stdout
    assert run("cancel", "cat-1").stdout == "cat-1  cancelled\n"
    waited = run("wait", "cat-1")
    assert (waited.returncode, waited.stderr) == (1, "cat-1  job cat-1 was cancelled\n")


def test_a_picture_to_start_from_goes_with_the_job(run: Run) -> None:
    given = ["--image", "a.png", "--mask-image", "b.png", "--strength", "0.5", "--preview"]
    run("submit", "a red star", "--id", "cat-2", *given)
    asked = json.loads(run("status", "cat-2", "--json").stdout)["request"]
    assert (asked["image"], asked["mask_image"], asked["strength"]) == ("a.png", "b.png", 0.5)
    assert asked["preview"] is True
    told = run("submit", "a red star", "--strength", "0.5")
    assert (told.returncode, told.stderr) == (1, "imagefleet: strength=0.5: needs an image\n")


def test_a_file_of_prompts_is_one_job_a_line(run: Run) -> None:
    assert len(run("submit", "-", stdin="a\n\nb\nc\n").stdout.split()) == 3


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        ("good\n\n" + "a" * 4001 + "\n", "line 3: prompt='aaa"),
        ("\n \n", "standard input holds no prompt"),
    ],
)
def test_a_bad_file_is_refused_whole_and_the_line_named(
    run: Run, redis_server: LocalRedisServer, namespace: str, stdin: str, sentence: str
) -> None:
    told = run("submit", "-", stdin=stdin)
    assert (told.returncode, told.stdout) == (1, "")
    assert sentence in told.stderr
    assert Client(redis_server.url, namespace=namespace).tenants.statuses()[0].waiting == 0


@pytest.mark.parametrize("command", ["status", "wait", "cancel"])
def test_unknown_jobs_are_named_after_the_others(run: Run, command: str) -> None:
    run("submit", "a", "--id", "known")
    run("cancel", "known")
    told = run(command, "nobody", "known")
    assert told.returncode == 1
    assert "known" in told.stdout + told.stderr.partition("\n")[0]
    assert told.stderr.splitlines()[-1].startswith("imagefleet: no job 'nobody' here")


@pytest.mark.parametrize(
    "arguments", [("submit", "a", "--timeout", "3"), ("wait", "a", "--timeout", "-1")]
)
def test_a_timeout_that_means_nothing_is_a_wrong_command_line(
    run: Run, arguments: tuple[str, ...]
) -> None:
    told = run(*arguments)
    assert told.returncode == 2
    assert "--timeout" in told.stderr


def test_tenants_are_weighed_limited_and_shown(run: Run) -> None:
    assert run("tenants", "--weight", "gold=3", "--limit", "free=1").returncode == 0
    run("submit", "a", "--tenant", "free")
    told = run("submit", "b", "--tenant", "free")
    assert (told.returncode, told.stdout) == (1, "")
    assert "tenant 'free' has enough jobs waiting" in told.stderr
    assert run("tenants").stdout.split("\n") == [
        "tenant                               waiting      weight       limit",
        "*                                          1           -           -",
        "free                                       1           1           1",
        "gold                                       0           3           -",
        "",
    ]
    assert run("tenants", "--limit", "free=none").stdout.count("- \n") == 0
    assert run("submit", "b", "--tenant", "free").returncode == 0
    assert run("tenants", "--weight", "gold").returncode == 2


@pytest.mark.parametrize("limit", ["inf", "nan", "1.9", "many"])
def test_a_limit_that_is_no_number_of_jobs_is_a_wrong_command_line(run: Run, limit: str) -> None:
    told = run("tenants", "--limit", f"gold={limit}")
    assert (told.returncode, told.stdout) == (2, "")
    assert f"{limit!r} is neither a whole number of jobs nor none" in told.stderr


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_the_ids_of_accepted_jobs_are_printed_although_later_ones_are_refused(
    run: Run, redis_server: LocalRedisServer, namespace: str, wait: tuple[str, ...]
) -> None:
    client = Client(redis_server.url, namespace=namespace)
    client.tenants.limit("*", 600)
    told = run("submit", "-", *wait, stdin="".join(f"prompt {n}\n" for n in range(1000)))
    assert told.returncode == 1
    assert "the queue is full" in told.stderr
    ids = told.stdout.split()
    assert len(ids) == len(client.statuses(ids)) == 500


def test_waiting_prints_where_the_pictures_are(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    job = Client(redis_server.url, namespace=namespace).submit("a")
    records = JobRecords(connect(redis_server.url), namespace, 3600)
    start_attempt(records, job.id, "x")
    result = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})
    records.succeed(job.id, "x", result, None)
    assert run("wait", job.id).returncode == 0


def test_ctrl_c_while_waiting_leaves_the_id_behind(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    place = {"IMAGEFLEET_REDIS_URL": redis_server.url, "IMAGEFLEET_NAMESPACE": namespace}
    waiting = subprocess.Popen(
        [sys.executable, "-m", "imagefleet.producer", "submit", "a", "--wait"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **place},
    )
    with waiting:
        assert waiting.stderr is not None
        job_id, _, said = waiting.stderr.readline().strip().partition("  ")
        assert "no worker is alive" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert (waiting.wait(60), said) == (130, "accepted")
    assert Client(redis_server.url, namespace=namespace).get(job_id).status().request.prompt == "a"


def test_nobody_is_missed_who_is_not_needed(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    client = Client(redis_server.url, namespace=namespace)
    client.submit("a", id="over").cancel()
    client.submit("a", id="waits")
    redis = connect(redis_server.url)
    missed = "no worker is alive"
    assert missed not in run("wait", "over").stderr
    assert missed in run("wait", "over", "waits", "--timeout", "0").stderr
    redis.zadd(leases_key(namespace), {"w": time.time() + 60})
    assert missed not in run("wait", "waits", "--timeout", "0").stderr


def test_a_timeout_names_what_is_not_done(run: Run) -> None:
    told = run("submit", "a", "--id", "slow", "--wait", "--timeout", "0.1")
    assert (told.returncode, told.stdout) == (1, "slow  not done yet\n")
    assert "wait again" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("submit", ""), "prompt='': must not be empty"),
        (("submit", "a", "--height", "60", "--width", "64"), "height=60: must be divisible by 8"),
        (("status", "nobody"), "no job 'nobody' here"),
        (("cancel", "a/b"), "id='a/b'"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    told = run(*arguments)
    assert told.returncode == 1
    assert told.stderr.startswith("imagefleet: ")
    assert told.stderr.count("\n") == 1
    assert sentence in told.stderr
