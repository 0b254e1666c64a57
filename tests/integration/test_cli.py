"""The commands as a shell runs them: their output, exit codes and one-line errors."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from imagefleet import Client
from imagefleet.producer.commands.cli import main
from imagefleet.shared.jobs.model import JobError
from imagefleet.shared.jobs.offers import OfferRegistry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import leases_key
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.support import forked
from tests.support.processes import ROOT
from tests.support.records import start_attempt

GROUPS = ("bulk", "dead-letters", "webhooks")
"""Commands that have commands of their own."""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(redis_server: LocalRedisServer, namespace: str) -> Run:
    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        command, *rest = arguments
        group = [command, rest.pop(0)] if command in GROUPS else [command]
        connection = ["--redis-url", redis_server.url, "--namespace", namespace]
        return forked.run(*("-m", "imagefleet.producer", *group, *connection, *rest), stdin=stdin)

    return run


def test_submitted_jobs_can_be_shown_and_cancelled(run: Run) -> None:
    assert run("submit", "a red star", "--id", "cat-1", "--seed", "7").stdout == "cat-1\n"
    assert run("status", "cat-1").stdout == "cat-1  queued\n"
    assert '"seed":7' in run("status", "cat-1", "--json").stdout
    assert run("cancel", "cat-1").stdout == "cat-1  cancelled\n"
    waited = run("wait", "cat-1")
    assert (waited.returncode, waited.stderr) == (1, "cat-1  job cat-1 was cancelled\n")


@pytest.mark.parametrize("end", ["succeed", "fail"])
def test_a_job_that_has_ended_is_not_cancelled(
    run: Run, redis_server: LocalRedisServer, namespace: str, end: str
) -> None:
    client = Client(redis_server.url, namespace=namespace)
    records = JobRecords(connect(redis_server.url), namespace, 3600)
    client.submit("a", id="ended")
    start_attempt(records, "ended", "x")
    if end == "succeed":
        result = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})
        records.succeed("ended", "x", result, None)
    else:
        records.fail("ended", "x", JobError(code="invalid_input", message="no image"), None)
    client.submit("a", id="queued")
    done = run("cancel", "ended", "queued")
    state = client.get("ended").status().state
    assert done.stdout == f"ended  {state} already, so nothing was cancelled\nqueued  cancelled\n"
    assert done.returncode == 1
    assert run("cancel", "queued").returncode == 0
    done = run("cancel", "ended", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, {"id": "ended", "state": state})


def test_submit_passes_the_options_for_images_and_latents_to_the_job(run: Run) -> None:
    given = ["--image", "a.png", "--mask-image", "b.png", "--strength", "0.5", "--preview"]
    given += [
        "--ttl",
        "60",
        "--clip-skip",
        "2",
        "--prompt-weighting",
        "--lora",
        "style:0.8",
        "--lora",
        "detail",
    ]
    run("submit", "a red star", "--id", "cat-2", *given)
    request = json.loads(run("status", "cat-2", "--json").stdout)["request"]
    assert (request["image"], request["mask_image"], request["strength"]) == ("a.png", "b.png", 0.5)
    assert (request["preview"], request["ttl"], request["clip_skip"]) == (True, 60, 2)
    assert request["prompt_weighting"] is True
    assert request["loras"] == [["detail", 1.0], ["style", 0.8]]
    split = ["--latents", "jobs/a/0.safetensors", "--denoising-start", "0.6"]
    run("submit", "a red star", "--id", "cat-3", *split, "--denoising-end", "0.8")
    request = json.loads(run("status", "cat-3", "--json").stdout)["request"]
    assert (request["latents"], request["denoising_start"]) == ("jobs/a/0.safetensors", 0.6)
    assert request["denoising_end"] == 0.8
    done = run("submit", "a red star", "--strength", "0.5")
    assert (done.returncode, done.stderr) == (1, "imagefleet: strength=0.5: needs an image\n")


def test_every_answer_can_be_json(run: Run) -> None:
    def answer(*arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]

    assert answer("submit", "a", "--id", "cat-1") == [{"id": "cat-1"}]
    assert answer("resend", "cat-1") == [{"id": "cat-1", "resent": False}]
    assert {each["tenant"]: each["waiting"] for each in answer("tenants")} == {"*": 1, "": 1}
    assert answer("wait", "cat-1", "--timeout", "0") == [{"id": "cat-1", "done": False}]
    assert answer("cancel", "cat-1") == [{"id": "cat-1", "state": "cancelled"}]
    [ended] = answer("wait", "cat-1")
    assert (ended["id"], ended["state"]) == ("cat-1", "cancelled")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--image", "/no/such.png", "image='/no/such.png': No such file"),
        ("--image", "./no.png", "image='no.png': No such file"),
        ("--image", "./" + 300 * "x", "File name too long"),
        ("--image", "~no-such-user/a.png", "image='~no-such-user/a.png': No such file"),
        (
            "--lora",
            "style:much",
            "'--lora': style:much: the scale 'much' of 'style' must be a number",
        ),
        ("--metadata", "{", "is not JSON"),
        ("--metadata", "[]", "must be a JSON object"),
        ("--out", "x", "--out needs --wait"),
    ],
)
def test_a_wrong_option_of_a_job_is_explained(
    run: Run, option: str, value: str, sentence: str
) -> None:
    done = run("submit", "a", option, value)
    assert done.returncode in (1, 2)
    assert sentence in done.stderr


def test_a_command_without_anything_to_list_says_so_on_standard_error(run: Run) -> None:
    for command, note in (
        (["bulk", "status"], "no bulk runs"),
        (["dead-letters", "list"], "no dead letters"),
        (["webhooks", "list"], "no callbacks"),
    ):
        done = run(*command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{note}\n")


def test_a_name_that_no_tenant_can_have_gets_no_limit(run: Run) -> None:
    done = run("tenants", "--limit", "a b=3")
    assert done.returncode == 1
    assert "tenant='a b': must be 1 to 128 letters" in done.stderr


def test_every_option_has_a_help_text() -> None:
    def options(command: click.Command, name: str) -> Iterator[tuple[str, click.Option]]:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield f"{name} {parameter.name}", parameter
        if isinstance(command, click.Group):
            for each in command.commands.values():
                yield from options(each, f"{name} {each.name}")

    assert [name for name, option in options(main, "imagefleet") if not option.help] == []


def test_a_mistyped_variable_is_reported(redis_server: LocalRedisServer) -> None:
    environment = {"IMAGEFLEET_REDIS_URL": redis_server.url, "IMAGEFLEET_NAMSPACE": "x"}
    done = forked.run("-m", "imagefleet.producer", "tenants", environment=environment)
    warning = "IMAGEFLEET_NAMSPACE is not a setting; did you mean IMAGEFLEET_NAMESPACE?\n"
    assert (done.returncode, done.stderr) == (0, warning)


def test_each_line_of_standard_input_becomes_one_job(run: Run) -> None:
    assert len(run("submit", "-", stdin="a\n\nb\nc\n").stdout.split()) == 3


def test_standard_input_may_be_utf_16_with_a_mark_and_have_any_line_ends(run: Run) -> None:
    sent = "grün\rb\r\n".encode("utf-16").decode("utf-8", "surrogateescape")
    ids = run("submit", "-", stdin=sent).stdout.split()
    prompts = [
        json.loads(run("status", each, "--json").stdout)["request"]["prompt"] for each in ids
    ]
    assert prompts == ["grün", "b"]
    done = run("submit", "-", stdin=sent[:-1])
    assert (done.returncode, done.stdout) == (1, "")
    assert "input='-': is not utf-16-le throughout: truncated data" in done.stderr


def test_a_byte_order_mark_is_not_part_of_a_prompt_of_standard_input(run: Run) -> None:
    ids = run("submit", "-", stdin="\ufeffa red star\n\ufeffa blue star\n").stdout.split()
    prompts = [
        json.loads(run("status", each, "--json").stdout)["request"]["prompt"] for each in ids
    ]
    assert prompts == ["a red star", "a blue star"]


def test_the_cfg_scale_of_an_infotext_is_converted_for_a_model_without_guidance_at_0(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    offer = offer_of(replace(FakeEngine().info, unguided_scale=0.0))
    OfferRegistry(connect(redis_server.url), namespace).announce(offer)
    infotext = "a red star\nSteps: 4, CFG scale: 6.5, Seed: 7, Size: 64x64\n"
    [made] = run("submit", "-", "--model", offer.model, stdin=infotext).stdout.split()
    request = json.loads(run("status", made, "--json").stdout)["request"]
    assert (request["prompt"], request["guidance_scale"]) == ("a red star", 5.5)


def test_rows_of_standard_input_become_jobs_with_their_parameters(run: Run) -> None:
    rows = '{"prompt": "a", "id": "row-1", "seed": 7}\n{"prompt": "b"}\n'
    done = run("submit", "-", "--num-inference-steps", "3", stdin=rows)
    first, second = done.stdout.split()
    assert first == "row-1"
    request = json.loads(run("status", first, "--json").stdout)["request"]
    assert (request["seed"], request["num_inference_steps"]) == (7, 3)
    assert json.loads(run("status", second, "--json").stdout)["request"]["prompt"] == "b"
    done = run("submit", "-", "--input-format", "csv", stdin='prompt,seed\n"a, b",5\nc,x\n')
    assert (done.returncode, done.stdout) == (1, "")
    assert "row 1: seed='x'" in done.stderr


def test_a_column_that_is_no_parameter_can_be_left_out_as_the_error_says(run: Run) -> None:
    rows = "prompt,the note\na,b\n"
    done = run("submit", "-", "--input-format", "csv", stdin=rows)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--ignore-column 'the note' leaves the column out" in done.stderr
    done = run("submit", "-", "--input-format", "csv", "--ignore-column", "the note", stdin=rows)
    assert len(done.stdout.split()) == 1


def test_the_name_of_a_table_in_the_place_of_a_prompt_submits_nothing(
    run: Run, tmp_path: Path
) -> None:
    table = tmp_path / "prompts.txt"
    assert run("submit", str(table)).returncode == 0  # there is no such file
    table.write_text("a star\n")
    done = run("submit", "a ring", str(table))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is a file, and a prompt was expected; `imagefleet submit - < FILE`" in done.stderr


def test_lines_of_standard_input_are_checked_with_the_files_of_all(
    run: Run, tmp_path: Path
) -> None:
    latents = tmp_path / "a.safetensors"
    latents.write_bytes(b"")
    done = run(*("submit", "-", "--latents", str(latents), "--denoising-start", "0.8"), stdin="a\n")
    assert done.returncode == 1
    assert "line 1" not in done.stderr
    assert "must be a safetensors file" in done.stderr


def test_standard_input_that_is_not_utf_8_is_refused_with_its_line(run: Run) -> None:
    done = run("submit", "-", stdin="good\nm\udce4rz\n")
    assert done.returncode == 1
    assert "line 2: prompt=" in done.stderr


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        ("good\n\n" + "a" * 4001 + "\n", "line 3: prompt='aaa"),
        ("\n \n", "standard input holds no prompt"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_submitted(
    run: Run, redis_server: LocalRedisServer, namespace: str, stdin: str, sentence: str
) -> None:
    done = run("submit", "-", stdin=stdin)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert Client(redis_server.url, namespace=namespace).tenants.statuses()[0].waiting == 0


def test_purged_jobs_can_be_queued_again(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    run("submit", "a red star", "--id", "a")
    assert run("resend", "a").stdout == "a  has a message, or is not queued\n"
    for key in (client := connect(redis_server.url)).keys(f"{namespace}.*"):
        client.delete(key)
    done = run("resend", "unknown", "a")
    assert (done.returncode, done.stdout) == (1, "a  queued again\n")
    assert "no job 'unknown' here" in done.stderr


@pytest.mark.parametrize(
    ("command", "known"), [("status", "queued"), ("cancel", "cancelled"), ("wait", "not done yet")]
)
def test_an_unreadable_record_hides_no_other_job(
    run: Run, redis_server: LocalRedisServer, namespace: str, command: str, known: str
) -> None:
    for job_id in "abc":
        run("submit", "a red star", "--id", job_id)
    connect(redis_server.url).hset(f"{namespace}:job:b", "request", "{")
    timeout = ["--timeout", "0"] if command == "wait" else []
    done = run(command, "a", "b", "c", *timeout)
    assert done.returncode == 1
    assert f"a  {known}" in done.stdout
    assert f"c  {known}" in done.stdout
    if command != "wait":
        [line] = done.stderr.splitlines()
        assert line.startswith("imagefleet: the record of job 'b' cannot be read")


@pytest.mark.parametrize("command", ["status", "wait", "cancel"])
def test_unknown_jobs_are_reported_after_the_known_ones(run: Run, command: str) -> None:
    run("submit", "a", "--id", "known")
    run("cancel", "known")
    done = run(command, "nobody", "known")
    assert done.returncode == 1
    assert "known" in done.stdout + done.stderr.partition("\n")[0]
    assert done.stderr.splitlines()[-1].startswith("imagefleet: no job 'nobody' here")


@pytest.mark.parametrize(
    "arguments", [("submit", "a", "--timeout", "3"), ("wait", "a", "--timeout", "-1")]
)
def test_a_timeout_without_wait_or_below_zero_is_a_usage_error(
    run: Run, arguments: tuple[str, ...]
) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "--timeout" in done.stderr


def test_tenants_sets_weights_and_limits_and_lists_them(run: Run) -> None:
    assert run("tenants", "--weight", "gold=3", "--limit", "free=1").returncode == 0
    run("submit", "a", "--tenant", "free")
    done = run("submit", "b", "--tenant", "free")
    assert (done.returncode, done.stdout) == (1, "")
    assert "tenant 'free' has enough jobs waiting" in done.stderr
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
    done = run("tenants", "--weight", "gold=none")
    assert done.returncode == 2
    assert "'--weight': 'none' is not a number; 1 is the weight of others" in done.stderr


@pytest.mark.parametrize("limit", ["inf", "nan", "1.9", "many"])
def test_a_limit_that_is_not_a_whole_number_is_a_usage_error(run: Run, limit: str) -> None:
    done = run("tenants", "--limit", f"gold={limit}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{limit!r} is neither a whole number of jobs nor none" in done.stderr


def test_the_status_of_a_failed_job_has_the_code_of_its_error(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    Client(redis_server.url, namespace=namespace).submit("a", id="a")
    error = JobError(code="invalid_input", message="no image")
    JobRecords(connect(redis_server.url), namespace, 3600).fail("a", "", error, None)
    assert run("status", "a").stdout == 'a  failed  invalid_input  "no image"\n'


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_ids_of_accepted_jobs_are_printed_when_later_jobs_are_refused(
    run: Run, redis_server: LocalRedisServer, namespace: str, wait: tuple[str, ...]
) -> None:
    client = Client(redis_server.url, namespace=namespace)
    client.tenants.set_limit("*", 600)
    done = run("submit", "-", *wait, stdin="".join(f"prompt {n}\n" for n in range(1000)))
    assert done.returncode == 1
    assert "the queue is full" in done.stderr
    ids = done.stdout.split()
    assert len(ids) == len(client.statuses(ids)) == 500


def test_wait_exits_with_0_for_a_job_that_succeeded(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    job = Client(redis_server.url, namespace=namespace).submit("a")
    records = JobRecords(connect(redis_server.url), namespace, 3600)
    start_attempt(records, job.id, "x")
    result = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})
    records.succeed(job.id, "x", result, None)
    assert run("wait", job.id).returncode == 0


def test_ctrl_c_prints_the_id_and_how_to_wait_again(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    environment = {"IMAGEFLEET_REDIS_URL": redis_server.url, "IMAGEFLEET_NAMESPACE": namespace}
    waiting = subprocess.Popen(
        [sys.executable, "-m", "imagefleet.producer", "submit", "a", "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    with waiting:
        assert waiting.stderr is not None
        job_id, _, note = waiting.stderr.readline().strip().partition("  ")
        assert "no worker is alive" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        printed, said = waiting.communicate(timeout=900)
        assert (waiting.returncode, note) == (130, "accepted")
    assert printed == f"{job_id}  not done yet\n"
    assert f"you can wait again: `imagefleet wait {job_id}`" in said
    assert Client(redis_server.url, namespace=namespace).get(job_id).status().request.prompt == "a"


def test_wait_warns_about_missing_workers_only_if_a_job_needs_one(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    client = Client(redis_server.url, namespace=namespace)
    client.submit("a", id="over").cancel()
    client.submit("a", id="waits")
    redis = connect(redis_server.url)
    warning = "no worker is alive"
    assert warning not in run("wait", "over").stderr
    assert warning in run("wait", "over", "waits", "--timeout", "0").stderr
    redis.zadd(leases_key(namespace), {"w": time.time() + 60})
    assert warning not in run("wait", "waits", "--timeout", "0").stderr


def test_a_timeout_prints_the_unfinished_jobs(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    done = run("submit", "a", "--id", "slow", "--wait", "--timeout", "0.1")
    assert (done.returncode, done.stdout) == (1, "slow  not done yet\n")
    again = f"--redis-url {redis_server.url} --namespace {namespace} slow"
    sentence = (
        "imagefleet: 1 job is not done after 0.1 s; the fleet continues, so you can wait again"
    )
    assert done.stderr.splitlines()[-1] == (
        f"{sentence}: `imagefleet wait {again}`; or look once: `imagefleet status {again}`"
    )


def test_a_timeout_of_many_jobs_names_no_password_and_no_endless_list(
    run: Run, redis_server: LocalRedisServer, namespace: str
) -> None:
    address = f"{redis_server.url}?username=default&password=any"  # which this server accepts
    lines = "".join(f"{number}\n" for number in range(6))
    done = run(*("submit", "-", "--wait", "--timeout", "0.1", "--redis-url", address), stdin=lines)
    assert len(done.stdout.splitlines()) == 6
    assert done.stderr.splitlines()[-1].endswith(f"`imagefleet status --namespace {namespace} ID…`")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("submit", ""), "prompt='': must not be empty"),
        (("submit", "a", "--height", "60", "--width", "64"), "height=60: must be divisible by 8"),
        (("status", "nobody"), "no job 'nobody' here"),
        (("cancel", "a/b"), "id='a/b'"),
    ],
)
def test_an_error_is_printed_in_one_line(
    run: Run, arguments: tuple[str, ...], sentence: str
) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("imagefleet: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
