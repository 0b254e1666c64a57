"""What `imagefleet keys` prints, and the keys that it makes."""

import json
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from imagefleet.producer.commands.cli import main
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.api_key import ApiKey, Scope, split_text
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.settings.settings import Settings
from tests.support import forked

Run = Callable[..., Result]


@pytest.fixture
def run(redis_server: LocalRedisServer, namespace: str) -> Run:
    def run(command: str, *arguments: str) -> Result:
        connection = ["--redis-url", redis_server.url, "--namespace", namespace]
        return CliRunner().invoke(main, ["keys", command, *connection, *arguments])

    return run


@pytest.fixture
def find(redis_server: LocalRedisServer, namespace: str) -> Callable[[str], ApiKey | None]:
    settings = Settings.load(redis_url=redis_server.url, namespace=namespace)
    return lambda text: ApiKeys(Connection(settings)).find(text)


def _id_and_secret(output: str) -> tuple[str, str]:
    parts = split_text(output.removesuffix("\n"))
    assert parts is not None
    return parts


def test_a_created_key_is_the_only_line_on_standard_output_and_works(
    run: Run,
    find: Callable[[str], ApiKey | None],
    redis_server: LocalRedisServer,
    namespace: str,
) -> None:
    environment = {"IMAGEFLEET_REDIS_URL": redis_server.url, "IMAGEFLEET_NAMESPACE": namespace}
    command = ("-m", "imagefleet.producer", "keys", "create", "--name", "shop", "--tenant", "gold")
    done = forked.run(*command, environment=environment)
    key_id, secret = _id_and_secret(done.stdout)
    assert done.stderr == f"key {key_id} of tenant gold; it is not shown again\n"
    key = find(done.stdout.strip())
    assert key is not None
    assert (key.tenant, key.scopes) == ("gold", (Scope.SUBMIT, Scope.READ))
    assert (key.max_priority, key.per_minute, key.images_per_day) == (3, 600, None)
    assert key.expires_at is None
    for listed in (run("list"), run("list", "--json")):
        assert key_id in listed.stdout
        assert secret not in listed.stdout + listed.stderr
        assert key.digest not in listed.stdout


def test_the_options_of_create_become_the_limits_of_the_key(
    run: Run, find: Callable[[str], ApiKey | None]
) -> None:
    options = "--scope operate --scope read --priority 1 --per-minute none --images-per-day 500"
    created = run(
        *("create", "--name", "shop", "--tenant", "gold", "--json"),
        *(*options.split(), "--expires", "90d"),
    )
    answer = json.loads(created.stdout)
    key = find(answer["key"])
    assert key is not None
    assert key.id == answer["id"]
    assert key.scopes == (Scope.READ, Scope.OPERATE)
    assert (key.max_priority, key.per_minute, key.images_per_day) == (1, None, 500)
    assert key.expires_at == pytest.approx(time.time() + 90 * 86_400, abs=900)
    [line] = run("list").stdout.splitlines()
    columns = line.split("  ")
    assert columns[:3] == [key.id, "valid", "gold"]
    assert columns[3:7] == ["read,operate", "1", "-", "500"]
    assert columns[-1] == "shop"
    listed = json.loads(run("list", "--json").stdout)
    assert listed["state"] == "valid"
    assert listed["last_used_at"] == pytest.approx(time.time(), abs=900)


def test_a_revoked_key_is_refused_and_the_others_of_the_line_are_revoked_too(
    run: Run, find: Callable[[str], ApiKey | None]
) -> None:
    texts = [run("create", "--name", "shop", "--tenant", "gold").stdout.strip() for _ in range(2)]
    (first, _), (second, secret) = (_id_and_secret(text) for text in texts)
    done = run("revoke", first, "nobody", texts[1])
    assert done.exit_code == 1
    assert done.stdout == f"{first}  shop  revoked\n{second}  shop  revoked\n"
    assert done.stderr == (
        "imagefleet: id='nobody': is the id of no key; `imagefleet keys list` shows all\n"
    )
    assert secret not in done.stdout
    assert [find(text) for text in texts] == [None, None]
    states = [line.split("  ")[1] for line in run("list").stdout.splitlines()]
    assert states == ["revoked", "revoked"]


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--tenant", "*"], 1, "imagefleet: tenant='*': must be 1 to 128 letters"),
        (["--tenant", "a", "--per-minute", "0"], 1, "imagefleet: per_minute=0: must be greater"),
        (["--tenant", "a", "--per-minute", "x"], 2, "'x' is neither a whole number nor none"),
        (["--tenant", "a", "--expires", "soon"], 2, "'soon' must be a whole number with s, m, h"),
        (["--tenant", "a", "--expires", "0d"], 1, "expires_at="),
        (
            ["--tenant", "a", "--scope", "paint"],
            2,
            "is not one of 'submit', 'read', 'operate'",
        ),
        (["--tenant", "a", "--priority", "10"], 2, "10 is not in the range"),
        ([], 2, "Missing option '--tenant'"),
    ],
)
def test_a_wrong_option_is_named_and_makes_no_key(
    run: Run, options: list[str], code: int, sentence: str
) -> None:
    done = run("create", "--name", "shop", *options)
    assert (done.exit_code, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert run("list").stderr == "no keys\n"
