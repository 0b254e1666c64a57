"""Measure the list of jobs with 100,000 jobs of a tenant: `python -m benchmarks.http.jobs`.

It starts its own Redis and a gateway that asks for keys, submits the jobs by the Python client,
ends all but 1,000 of them by writing results of one image into their records, and lists them as the
gateway would have. Then it asks for pages and searches, one after the other, over HTTP on this
host. `pages` counts the requests of a search until it is complete, `cpu_ms` is what one request
cost the gateway.

It does not show a network, a Redis on another host, or many callers at once.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.http.__main__ import cpu_s
from benchmarks.report import parser_of, print_json
from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.jobs.job_ids import stored_id, tenant_digest
from imagefleet.producer.gateway.redis_keys import starred_jobs_key, tenant_jobs_key
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import start_gateway
from tests.support.processes import Worker

_TENANT: Final = "gold"
_NAMESPACE: Final = "httpjobs"
_OPEN: Final = 1_000
"""So many of the newest jobs wait."""
_AT_ONCE: Final = 5_000
_SUBJECTS: Final = ("circle", "star", "ring", "square", "lake", "castle", "cat", "tree")
_COLOURS: Final = ("red", "blue", "green", "black", "white", "yellow", "brown")
_NEEDLE: Final = "a needle in the oldest part"


def _entry(number: int, rng: random.Random) -> dict[str, Any]:
    """Return the parameters of one job. The oldest ten have the needle in their prompt."""
    words = f"a {rng.choice(_COLOURS)} {rng.choice(_SUBJECTS)} on a {rng.choice(_COLOURS)} ground"
    prompt = f"{_NEEDLE if number < 10 else words}, 35 mm, soft light, number {number}"
    return {
        "prompt": prompt,
        "id": stored_id(_TENANT, f"job-{number:06d}"),
        "seed": rng.getrandbits(32),
        "num_inference_steps": 30,
    }


def _result(job_id: str, seed: int) -> dict[str, str]:
    """Return the fields that the end of a job writes into its record."""
    image = {
        "index": 0,
        "key": f"jobs/{job_id}/0.png",
        "url": f"s3://bucket/jobs/{job_id}/0.png",
        "seed": seed,
        "sha256": "ab" * 32,
        "size": 400_000,
        "height": 512,
        "width": 512,
        "format": "png",
    }
    result = {
        "images": [image],
        "model": "sd-1.4",
        "model_digest": f"sha256:{'cd' * 32}",
        "worker": "host-1:77:abc",
        "timings": {"waited": 0.1, "denoise": 3.2, "encode": 0.1, "upload": 0.1},
    }
    now = time.time()
    return {
        "state": "succeeded",
        "result": json.dumps(result),
        "pixel_sha256": json.dumps(["ef" * 32]),
        "started_at": str(now),
        "finished_at": str(now + 3.5),
        "step": "30",
        "steps": "30",
        "deliveries": "1",
        "attempt": "host-1:77:abc/1",
    }


def fill(client: Client, jobs: int) -> None:
    """Make the jobs, list them, and star each hundredth."""
    rng, redis = random.Random(7), client.connection.redis
    digest, began = tenant_digest(_TENANT), int(time.time() * 1e6) - jobs
    for at in range(0, jobs, _AT_ONCE):
        entries = [_entry(n, rng) for n in range(at, min(jobs, at + _AT_ONCE))]
        client.submit_many(entries, tenant=_TENANT)
        with redis.pipeline(transaction=False) as pipe:
            for number, entry in enumerate(entries, at):
                name, time_us = f"job-{number:06d}", began + number
                pipe.zadd(tenant_jobs_key(_NAMESPACE, digest), {name: time_us})
                if number % 100 == 0:
                    pipe.zadd(starred_jobs_key(_NAMESPACE, digest), {entry["id"]: time_us})
                if number < jobs - _OPEN:
                    fields: Any = _result(entry["id"], entry["seed"])
                    pipe.hset(job_key(_NAMESPACE, entry["id"]), mapping=fields)
            pipe.execute()


class Asker:
    """Asks one gateway for jobs, and measures each answer."""

    def __init__(self, http: httpx.Client, pid: int) -> None:
        """
        Args:
            pid: the process of the gateway.
        """
        self._http = http
        self._pid = pid
        self.seconds: list[float] = []

    def page(self, **asked: Any) -> dict[str, Any]:
        """Return one page."""
        began = time.perf_counter()
        answer = self._http.get("/v1/jobs", params=asked)
        self.seconds.append(time.perf_counter() - began)
        answer.raise_for_status()
        page: dict[str, Any] = answer.json()
        return page

    def pages(self, **asked: Any) -> Iterator[dict[str, Any]]:
        """Yield the pages of a search until it is complete."""
        cursor: dict[str, str] = {}
        while True:
            page = self.page(**asked, **cursor)
            yield page
            if page["next"] is None:
                return
            cursor = {"cursor": page["next"]}

    def measure(self, name: str, repeats: int, *, whole: bool, **asked: Any) -> dict[str, Any]:
        """Return the figures of one kind of question.

        Args:
            whole: follow the search to its end; else ask for its first page `repeats` times.
        """
        self.seconds.clear()
        cpu = cpu_s(self._pid)
        if whole:
            pages = list(self.pages(limit=50, **asked))
        else:
            pages = [self.page(limit=50, **asked) for _ in range(repeats)][-1:]
        cpu_ms = 1e3 * (cpu_s(self._pid) - cpu) / len(self.seconds)
        ordered = sorted(self.seconds)
        milliseconds = {
            f"{label}_ms": round(1e3 * ordered[int(share * (len(ordered) - 1))], 1)
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        }
        found = sum(len(page["data"]) for page in pages)
        looks = {"what": name, "pages": len(pages), "found": found}
        return {**looks, **milliseconds, "cpu_ms": round(cpu_ms, 1)}


def measure_all(ask: Asker, jobs: int, repeats: int) -> list[dict[str, Any]]:
    """Return the figures of all questions."""
    newest = ask.page(limit=1)
    middle = f"before-{int(newest['searched_until'] * 1e6) - jobs // 2}"
    first = [
        ask.measure(name, repeats, whole=False, **asked)
        for name, asked in {
            "first page": {},
            "page in the middle": {"cursor": middle},
            "starred": {"starred": "true"},
            "search: every 7th": {"prompt": "a RED"},
            "search: every 392nd": {"prompt": "red cat on a red"},
            "search: state failed": {"state": "failed"},
        }.items()
    ]
    return [*first, ask.measure("search: the oldest ten", 1, whole=True, prompt=_NEEDLE)]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of the tenant")
    parser.add_argument("--repeats", type=int, default=50, help="of each question")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = _run(stack, folder, asked)
    names = ("what", "pages", "found", "p50_ms", "p99_ms", "max_ms", "cpu_ms")
    print(f"{names[0]:24}" + "".join(f"{name:>10}" for name in names[1:]))
    for row in rows:
        print(f"{row['what']:24}" + "".join(f"{row[name]:>10}" for name in names[1:]))
    print_json("http_jobs", {**vars(asked), "questions": rows})


def _run(stack: ExitStack, folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    server = stack.enter_context(LocalRedisServer(folder / "redis"))
    settings = {
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_NAMESPACE": _NAMESPACE,
        "IMAGEFLEET_STORAGE_URL": f"file://{folder}",
        "IMAGEFLEET_HTTP_REQUIRE_KEYS": "true",
    }

    def start(*command: str, **more: str) -> Worker:
        process = Worker(folder, settings | more, command)
        stack.callback(process.kill)
        return process

    client = stack.enter_context(Client(server.url, namespace=_NAMESPACE))
    fill(client, asked.jobs)
    key = ApiKeys(client.connection).create("a", _TENANT, (Scope.READ,))
    gateway = start_gateway(start)
    headers = {"authorization": f"Bearer {key}"}
    http = stack.enter_context(httpx.Client(base_url=gateway.url, headers=headers, timeout=60))
    return measure_all(Asker(http, gateway.process.process.pid), asked.jobs, asked.repeats)


if __name__ == "__main__":
    main()
