"""Put damaged keys into a fleet's Redis, and read them with every command and the exporter.

A case costs its own entry only: what is sound is still listed, and jobs can be submitted.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from imagefleet import Client, ImagefleetError, InvalidRequest
from imagefleet.producer.commands.cli import main
from imagefleet.producer.fleet.metrics import FleetCollector
from imagefleet.producer.fleet.snapshot import read_snapshot
from tests.fuzz.cases import ID, KeyCase
from tests.fuzz.fleet import NAMESPACE, FuzzedFleet
from tests.fuzz.ledger import Ledger, Problem, holds_controls

_LISTINGS: Final = (
    ("jobs", "--limit", "100000"),
    ("jobs", "--limit", "100000", "--json"),
    ("jobs", "--state", "failed", "--since", "1h"),
    ("fleet",),
    ("fleet", "--json"),
    ("workers", "list"),
    ("dead-letters", "list"),
    ("dead-letters", "list", "--json"),
    ("tenants",),
)
_ABOUT_ONE: Final = ("status", "resend", "cancel")
_WITNESS: Final = "witness"
_WAIT_S: Final = 60.0
_MAX_SENTENCE: Final = 4_000


class DamagedKeys:
    """The damaged keys of one round."""

    def __init__(self, fleet: FuzzedFleet, ledger: Ledger) -> None:
        self._fleet, self._ledger = fleet, ledger
        self._worker = fleet.worker_name()
        self._url = fleet.client.settings.redis_url.get_secret_value()

    def check(self, cases: Sequence[KeyCase]) -> list[Problem]:
        """Damage keys and read them. A key of another type that all share is tried by itself."""
        shared = [case for case in cases if case.kind != "hash" and ID not in case.key]
        shared = [case for case in shared if case.key != "leases"]
        together = [case for case in cases if case not in shared]
        problems: list[Problem] = []
        for group in [together, *([case] for case in shared)]:
            if not group:
                continue
            witness = f"{_WITNESS}-{group[0].id}"
            self._fleet.client.submit("an ordinary job", id=witness).result(timeout=_WAIT_S)
            with self._damaged(group):
                problems += self._read(group, witness)
        return problems

    @contextmanager
    def _damaged(self, group: Sequence[KeyCase]) -> Iterator[None]:
        """Damage keys, and restore those that the fleet shares."""
        redis = self._fleet.redis
        keys = [f"{NAMESPACE}:{name}" for name in {case.key for case in group} if ID not in name]
        kept = {key: redis.dump(key) for key in keys if key != f"{NAMESPACE}:leases"}
        added: list[bytes] = []
        try:
            for case in group:
                added += self._add(case)
            yield
        finally:
            for key, content in kept.items():
                redis.delete(key)
                if content is not None:
                    redis.restore(key, 0, content)
            if added:
                redis.zrem(f"{NAMESPACE}:leases", *added)
            redis.delete(f"{NAMESPACE}:dead", f"{NAMESPACE}:dead:letters")

    def _add(self, case: KeyCase) -> list[bytes]:
        """Damage a key. Return the names that were added to the leases."""
        redis: Any = self._fleet.redis
        key = f"{NAMESPACE}:{case.key.replace(ID, case.id)}"
        fields = {name.encode(errors="replace"): text for name, text in case.fields.items()}
        if case.kind != "hash" and case.key != "leases":
            redis.delete(key)
        if case.kind == "hash":
            redis.hset(
                key, mapping={name: text.encode(errors="replace") for name, text in fields.items()}
            )
        elif case.kind == "zset":
            redis.zadd(key, {name: float(score) for name, score in fields.items()})
        elif case.kind == "string":
            redis.set(key, next(iter(fields)))
        else:
            (redis.rpush if case.kind == "list" else redis.sadd)(key, *fields)
        if case.kind == "hash" and case.key == "workers":  # only those with a lease are listed
            redis.zadd(f"{NAMESPACE}:leases", dict.fromkeys(fields, time.time() + 600))
        if case.kind == "hash" and case.key == "dead:letters":
            redis.zadd(f"{NAMESPACE}:dead", dict.fromkeys(fields, time.time()))
        return [*fields] if case.key in ("leases", "workers") else []

    def _read(self, group: Sequence[KeyCase], witness: str) -> list[Problem]:
        problems = [problem for case in group if (problem := self._read_one(case))]
        wrong = self._submit(f"{witness}-2")
        wrong = wrong or next(self._faults(witness), "")
        problems += [Problem(sentence=wrong, suspects=[case.id for case in group])] if wrong else []
        return problems

    def _faults(self, job_id: str) -> Iterator[str]:
        """Yield what is wrong with the output of each command, and of the exporter."""
        for command in _LISTINGS:
            output, fault = self._invoke(command)
            if fault:
                yield fault
            elif (sound := {"jobs": job_id, "fleet": self._worker}.get(command[0])) is None:
                continue
            elif sound not in output and "--state" not in command:
                yield f"{command} does not list {sound}"
        # Another client has its own copy of the offers, which are damaged now.
        with Client(settings=self._fleet.client.settings) as fresh:
            registry = CollectorRegistry()
            registry.register(FleetCollector(partial(read_snapshot, fresh.connection)))
            try:
                if b"imagefleet_redis_up 1.0" not in generate_latest(registry):
                    yield "the exporter says that Redis does not answer"
            except Exception as error:
                yield f"the exporter raised {type(error).__name__}: {error!s:.300}"

    def _read_one(self, case: KeyCase) -> Problem | None:
        """Count the outcome of a case, and read it where it is a record."""
        if ID not in case.key:
            self._ledger.count("damaged key", f"{case.key}: {case.kind}")
            return None
        try:
            self._fleet.client.get(case.id)
            outcome, fault = "read", ""
        except ImagefleetError as error:
            outcome, sentence = f"refused: {error.code}", str(error)
            unclear = case.id not in sentence or len(sentence) > _MAX_SENTENCE
            fault = f"{sentence[:300]!r}" if unclear or holds_controls(sentence) else ""
        except Exception as error:
            outcome, fault = "error", f"get() raised {type(error).__name__}: {error!s:.300}"
        self._ledger.count("damaged record", outcome)
        for command in _ABOUT_ONE:
            fault = fault or self._invoke((command, case.id))[1]
        return Problem(sentence=f"a record: {fault}", suspects=[case.id]) if fault else None

    def _invoke(self, command: Sequence[str]) -> tuple[str, str]:
        """Run a command. Return what it prints, and what is wrong or ''."""
        environment = {
            "IMAGEFLEET_REDIS_URL": self._url,
            "IMAGEFLEET_NAMESPACE": NAMESPACE,
            "COLUMNS": "200",
        }
        result = CliRunner().invoke(main, command, env=environment)
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            return "", f"{command} raised {type(error).__name__}: {error!s:.300}"
        if result.exit_code not in (0, 1):
            return "", f"{command} ended with {result.exit_code}: {result.output[:300]!r}"
        raw = next((line for line in result.output.splitlines() if holds_controls(line)), None)
        return result.output, "" if raw is None else f"{command} prints {raw[:300]!r}"

    def _submit(self, job_id: str) -> str:
        """Submit as another program does, which has read no offer yet. Return what is wrong."""
        try:
            with Client(settings=self._fleet.client.settings) as fresh:
                fresh.submit("an ordinary job", id=job_id).result(timeout=_WAIT_S)
        except InvalidRequest as error:  # an offer may say that the model takes no such job
            unclear = holds_controls(str(error)) or len(str(error)) > _MAX_SENTENCE
            return f"an unclear refusal: {error!s:.300}" if unclear else ""
        except Exception as error:
            return f"a job among damaged keys: {type(error).__name__}: {error!s:.300}"
        return ""
