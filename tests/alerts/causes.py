"""The causes of alerts: each makes one thing go wrong in a real fleet.

A cause is a generator. It yields conditions and goes on when they are true, so that several causes
take their turns in the main thread. It calls `fleet.caused()` at the moment from which an alert is
due, and may go on until its alerts have fired.
"""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import httpx

from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.redis_client.memory import read_memory
from tests.alerts.fleet import SCRAPE_S, SLOW_SCRAPE_S, Fleet, Process, pause
from tests.alerts.odd_worker import FILE
from tests.support.hanging import HangingServer
from tests.support.hostile_messages import NEWER, encode
from tests.support.receiver import Receiver, respond_with
from tests.support.s3 import BUCKET, FaultyS3, error, pass_on, signed_s3

Steps = Iterator[Callable[[], object]]
_SHORT_LEASE: Final = {"IMAGEFLEET_LEASE_S": "2"}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What goes wrong, and the alerts that it must fire."""

    name: str
    text: str
    alerts: tuple[str, ...]
    provoke: Callable[[Fleet], Steps]
    redis: tuple[str, ...] | None = None
    """The options of a Redis of its own; None if it shares one."""
    exporter_interval_s: float = SCRAPE_S


def _worker_killed(fleet: Fleet) -> Steps:
    worker = fleet.worker("fake:seconds=1,capacity=4", _SHORT_LEASE)
    yield worker.ready
    fleet.client.submit_many([f"job {i}" for i in range(8)], num_inference_steps=100)
    yield lambda: fleet.client.fleet.read().in_flight >= 4
    yield lambda: fleet.number("imagefleet_ready") == 1
    worker.kill()
    fleet.caused()


def _model_departed(fleet: Fleet) -> Steps:
    usual = fleet.worker()
    other = fleet.worker("fake:name=other", {"IMAGEFLEET_SERVES_DEFAULT": "false"})
    yield usual.ready
    yield other.ready
    yield lambda: "other" in fleet.client.offers()
    other.send(signal.SIGTERM)
    yield other.ended
    fleet.client.submit("a", model="other")
    fleet.caused()


def _redis_hangs(fleet: Fleet) -> Steps:
    fleet.redis_server.process.send_signal(signal.SIGSTOP)
    fleet.caused()
    yield lambda: False


def _exporter_killed(fleet: Fleet) -> Steps:
    fleet.exporter.kill()
    fleet.caused()
    yield lambda: False


def _redis_fills(fleet: Fleet) -> Steps:
    def used() -> float:
        memory = read_memory(fleet.redis)
        assert memory is not None
        assert memory.limit is not None
        return memory.used / memory.limit

    def submit_until(share: float) -> None:
        while used() < share:
            fleet.client.submit_many(["long " * 700] * 10)

    submit_until(0.84)
    fleet.caused()
    yield lambda: "ImagefleetRedisMemory" in fleet.fired
    try:
        submit_until(1)
    except BrokerUnavailable:
        fleet.caused()


def _dataset_stalls(fleet: Fleet) -> Steps:
    worker = fleet.worker("fake:seconds=1", _SHORT_LEASE)
    yield worker.ready
    prompts = fleet.folder / "prompts.txt"
    prompts.write_text("".join(f"prompt {i}\n" for i in range(500)))
    fleet.run("-m", "imagefleet.producer", "bulk", "run", str(prompts), f"{fleet.folder}/dataset")
    yield lambda: fleet.client.fleet.read().in_flight_shards
    worker.kill()
    fleet.caused()


def _device_fails(fleet: Fleet) -> Steps:
    broken = fleet.folder / "broken"
    worker = fleet.worker(f"fake:failing={broken}")
    yield worker.ready
    broken.touch()
    fleet.client.submit("a")
    fleet.caused()


def _stranger_joins(fleet: Fleet) -> Steps:
    usual = fleet.worker(settings=_SHORT_LEASE)
    yield usual.ready
    usual.send(signal.SIGSTOP)
    yield pause(8)
    stranger = fleet.worker("fake:name=strange", _SHORT_LEASE)
    yield stranger.ready
    usual.send(signal.SIGCONT)
    fleet.caused()


def _worker_frozen(fleet: Fleet) -> Steps:
    frozen, other = (fleet.worker(settings=_SHORT_LEASE) for _ in range(2))
    yield frozen.ready
    yield other.ready
    yield lambda: fleet.number("imagefleet_ready") == 2
    yield pause(3 * SCRAPE_S)
    frozen.send(signal.SIGSTOP)
    fleet.caused()
    yield pause(8)
    frozen.send(signal.SIGCONT)


def _worker_restarts(fleet: Fleet) -> Steps:
    port = fleet.reserve_port()
    fleet.caused()
    for _ in range(7):
        yield from _scrape_and_kill(fleet, fleet.worker(port=port), time.time() - 1)


def _scrape_and_kill(fleet: Fleet, worker: Process, started_at: float) -> Steps:
    metric, labels = "process_start_time_seconds", ',job="imagefleet-worker"'
    yield lambda: fleet.number(metric, labels) > started_at
    worker.kill()


def _prompts_fail(fleet: Fleet) -> Steps:
    worker = fleet.worker(settings={"IMAGEFLEET_MAX_RETRIES": "0"})
    yield worker.ready
    yield lambda: fleet.number("imagefleet_ready") == 1
    fleet.client.submit_many(
        [*(f"good {i}" for i in range(20)), *(f"[fail] {i}" for i in range(8))]
    )
    fleet.caused()


def _newer_message(fleet: Fleet) -> Steps:
    worker = fleet.worker(settings={"IMAGEFLEET_NEWER_MESSAGE_S": "3"})
    yield worker.ready
    message = encode(NEWER["newer version"](), "from-a-newer-release")
    fleet.redis.lpush(list_key(f"{fleet.name}.default.native", 3), message)
    fleet.caused()


def _receiver_gone(fleet: Fleet) -> Steps:
    worker = fleet.worker()
    receiver = fleet.stack.enter_context(Receiver(respond=respond_with(410)))
    yield worker.ready
    yield lambda: fleet.number("imagefleet_ready") == 1
    yield pause(3 * SCRAPE_S)
    fleet.client.submit("a", callback_url=receiver.url)
    fleet.caused()


def _receiver_away(fleet: Fleet) -> Steps:
    worker = fleet.worker("fake:capacity=32")
    yield worker.ready
    url = f"http://127.0.0.1:{fleet.reserve_port()}/"
    fleet.client.submit_many(
        [f"job {i}" for i in range(600)], callback_url=url, callback_events=["started", "succeeded"]
    )
    yield lambda: fleet.number("imagefleet_callbacks", ',state="waiting"') > 1000
    fleet.caused()
    while True:
        fleet.client.submit("another", callback_url=url)
        yield pause(2)


def _store_away(fleet: Fleet) -> Steps:
    store = fleet.stack.enter_context(signed_s3())
    door = fleet.stack.enter_context(FaultyS3(pass_on(store)))
    url = f"s3://{BUCKET}?endpoint_url={door.endpoint_url}"
    worker = fleet.worker(
        settings={**store.credentials.environment(), "IMAGEFLEET_STORAGE_URL": url}
    )
    yield worker.ready
    yield lambda: fleet.number("imagefleet_ready") == 1
    door.fault = error(503, "SlowDown")
    fleet.client.submit_many([f"job {i}" for i in range(16)])
    fleet.caused()


def _inputs_slow(fleet: Fleet) -> Steps:
    worker = fleet.worker(settings={"IMAGEFLEET_INPUT_IMAGE_JOBS": "2"})
    server = fleet.stack.enter_context(HangingServer("127.0.0.1"))
    yield worker.ready
    image = f"http://127.0.0.1:{server.port}/a.png"
    fleet.client.submit_many([f"job {i}" for i in range(30)], image=image, strength=0.5)
    fleet.caused()


def _device_odd(fleet: Fleet) -> Steps:
    odd = fleet.folder / "odd"
    worker = fleet.worker(module="tests.alerts.odd_worker", settings={FILE: str(odd)})
    yield worker.ready
    odd.touch()
    fleet.caused()


def _gateway_without_redis(fleet: Fleet) -> Steps:
    url = fleet.gateway()
    yield lambda: _status(f"{url}/readyz") == 200
    fleet.redis_server.kill()
    fleet.caused()
    while True:
        for path in ("readyz", "v1/models"):
            assert _status(f"{url}/{path}") == 503
        yield pause(SCRAPE_S / 2)


def _status(url: str) -> int:
    """Return the status with which a gateway answers; 0 while it does not."""
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0


def healthy(fleet: Fleet) -> Steps:
    """Run jobs with callbacks as long as the others run. No alert may fire."""
    worker = fleet.worker(settings={"IMAGEFLEET_LEASE_S": "60"})
    receiver = fleet.stack.enter_context(Receiver())
    url = fleet.gateway()
    yield worker.ready
    yield lambda: _status(f"{url}/readyz") == 200
    while True:
        assert _status(f"{url}/v1/models") == 200
        fleet.client.submit("a job of a healthy fleet", callback_url=receiver.url)
        yield pause(1)


CAUSES: Final = (
    Cause(
        name="worker-killed",
        text="the only worker, with 4 jobs on its device and 4 waiting, gets kill -9",
        alerts=(
            "ImagefleetWorkersLost",
            "ImagefleetTargetDown",
            "ImagefleetNoWorker",
            "ImagefleetQueueOld",
        ),
        provoke=_worker_killed,
    ),
    Cause(
        name="receiver-away",
        text="1,200 callbacks wait for a receiver that does not listen, and more come",
        alerts=("ImagefleetCallbacksPileUp",),
        provoke=_receiver_away,
    ),
    Cause(
        name="worker-restarts",
        text="a worker gets kill -9 and is started again, seven times",
        alerts=("ImagefleetWorkerRestarts",),
        provoke=_worker_restarts,
    ),
    Cause(
        name="stranger-joins",
        text="a host with another default model joins while the only other one is frozen",
        alerts=("ImagefleetHostsDiffer",),
        provoke=_stranger_joins,
    ),
    Cause(
        name="dataset-stalls",
        text="the only worker gets kill -9 while it makes the first shard of a dataset",
        alerts=("ImagefleetDatasetIdle",),
        provoke=_dataset_stalls,
    ),
    Cause(
        name="inputs-slow",
        text="30 jobs start from images of a server that never answers",
        alerts=("ImagefleetDevicesIdle",),
        provoke=_inputs_slow,
    ),
    Cause(
        name="store-away",
        text="the S3 store answers 503 to every request",
        alerts=("ImagefleetUploadsFail",),
        provoke=_store_away,
    ),
    Cause(
        name="model-departed",
        text="the only host of a model gets SIGTERM, and a job for it comes",
        alerts=("ImagefleetModelWithoutWorker",),
        provoke=_model_departed,
    ),
    Cause(
        name="redis-fills",
        text="jobs with long prompts wait in a Redis of 16 MB until it refuses them",
        alerts=("ImagefleetRedisMemory", "ImagefleetRedisFull"),
        provoke=_redis_fills,
        redis=("--appendonly", "yes", "--maxmemory", "16mb", "--maxmemory-policy", "noeviction"),
    ),
    Cause(
        name="device-fails",
        text="each batch and each health check of a device fails",
        alerts=("ImagefleetWorkerQuarantined",),
        provoke=_device_fails,
    ),
    Cause(
        name="device-odd",
        text="a pretended device reports 97 % of its memory, and one late compilation",
        alerts=("ImagefleetDeviceMemory", "ImagefleetRecompiles"),
        provoke=_device_odd,
    ),
    Cause(
        name="prompts-fail",
        text="8 of 28 jobs fail on the device",
        alerts=("ImagefleetJobsFail", "ImagefleetDeadLetters"),
        provoke=_prompts_fail,
    ),
    Cause(
        name="newer-message",
        text="a message of a newer release waits in vain for a newer worker",
        alerts=("ImagefleetDeadLetters",),
        provoke=_newer_message,
    ),
    Cause(
        name="worker-frozen",
        text="one of two workers is stopped by SIGSTOP for four leases",
        alerts=("ImagefleetLeasesLost",),
        provoke=_worker_frozen,
    ),
    Cause(
        name="receiver-gone",
        text="a receiver answers 410",
        alerts=("ImagefleetCallbacksGivenUp",),
        provoke=_receiver_gone,
    ),
    Cause(
        name="redis-hangs",
        text="Redis is stopped by SIGSTOP",
        alerts=("ImagefleetRedisDown",),
        provoke=_redis_hangs,
        redis=(),
        exporter_interval_s=SLOW_SCRAPE_S,
    ),
    Cause(
        name="gateway-without-redis",
        text="Redis gets kill -9, and a gateway is asked for more",
        alerts=("ImagefleetGatewayNotReady", "ImagefleetGatewayErrors"),
        provoke=_gateway_without_redis,
        redis=(),
    ),
    Cause(
        name="exporter-killed",
        text="the exporter gets kill -9",
        alerts=("ImagefleetExporterMissing",),
        provoke=_exporter_killed,
    ),
)
"""Those that take longest come first."""
