"""One chaos run: start everything, inject faults, let the jobs finish, and audit the results.

Input: a `ChaosConfig`. Output: an `AuditReport`.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefleet.producer.connection.lane_dead_letters import LaneDeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from imagefleet.worker.engine.fake.fake_engine import is_fake
from tests.chaos.audit import (
    AuditReport,
    audit_callbacks,
    audit_ends,
    audit_keys,
    audit_records,
    audit_tenants,
)
from tests.chaos.audit_hostile import audit_hostile, audit_refusals, ids_of, split_dead_letters
from tests.chaos.audit_images import audit_images
from tests.chaos.audit_metrics import audit_metrics, read_metrics
from tests.chaos.dataset import Dataset
from tests.chaos.faults import FaultInjector, Killed
from tests.chaos.fleet import Fleet, run_worker
from tests.chaos.gateways import Gateways
from tests.chaos.hostile_cases import draw_hostile
from tests.chaos.hostile_input import HostileInput
from tests.chaos.oracle import FAKE, SETTINGS_OF_REAL, Oracle
from tests.chaos.planned_jobs import (
    SIZES,
    WITH_GATEWAYS,
    WITH_LANES,
    PlannedJob,
    draw_jobs,
    for_real_model,
)
from tests.chaos.processes import PUTS, FaultyS3Process, Producers, environ
from tests.chaos.prometheus import METRICS_SETTINGS, Prometheus
from tests.chaos.record_watcher import RecordWatcher
from tests.chaos.servers import Cluster, OneServer, Servers
from tests.chaos.waiting import is_idle, make_callbacks_due
from tests.chaos.webhook_receiver import FlakyReceiver

NAMESPACE: Final = "chaos"
_IMPORTS: Final = (
    "boto3",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.redis",
    "imagefleet.shared.storage.s3",
    "imagefleet.worker.celery_app.bootsteps",
    "imagefleet.worker.commands.cli",
    "imagefleet.worker.celery_app.tasks",
)
_HOSTILE_SHARE: Final = 0.8
"""Share of the seconds in which hostile cases are sent. The last ones still meet faults."""
_CALLBACKS_DUE_EVERY_S: Final = 10.0
_DRAIN_S: Final = "1"
"""Seconds. Storing an image can take longer, so that some jobs are requeued."""
_KILL_GATEWAY_EVERY_S: Final = 6.0
_KILL_COMMAND_EVERY_S: Final = 30.0
"""The command that makes a dataset needs seconds to start."""
_LAST_DRAIN_S: Final = 60.0
"""Seconds for the workers that end the run. Without jobs only a hang takes so long."""


@dataclass(frozen=True, kw_only=True)
class ChaosConfig:
    """The size and length of a chaos run, and the seed of its jobs and faults."""

    seed: int
    jobs: int = 5_200
    seconds: float = 480.0
    """Seconds of faults. The remaining jobs then finish without new faults."""
    stall_timeout_s: float = 300.0
    """Seconds without progress after which the jobs that have not ended count as lost."""
    workers: int = 4
    killers: int = 6
    hostile_every: int = 50
    """One hostile case is added for so many jobs. 0: none."""
    lease_s: float = 3.0
    model: str = "fake:seconds=0.05,capacity=8,streams=4"
    """A real model has no prompts that fail or kill, and an image may be a level off."""
    pace: float = 1.0
    """How many times as long the pauses between faults of workers are, and the wait for progress. A
    real worker starts in seconds."""
    batching: str = "static"
    cluster: bool = False
    """Whether the fleet uses a cluster. Then it has no producer with Celery."""
    rows: int = 400
    """Rows of a dataset that is made meanwhile. 0: there is none."""
    prometheus: str | None = None
    """Prometheus' program, which scrapes the fleet during the run. None: there is none."""

    @property
    def is_real(self) -> bool:
        """Whether the workers run a real model."""
        return not is_fake(self.model)

    @property
    def model_settings(self) -> dict[str, str]:
        """The settings that determine what workers compile."""
        return {
            "IMAGEFLEET_MODEL": self.model,
            "IMAGEFLEET_BATCHING": self.batching,
            "IMAGEFLEET_SHAPES": ",".join(f"{height}x{width}" for height, width in SIZES),
            **(SETTINGS_OF_REAL if self.is_real else {}),
        }

    @property
    def hostile_count(self) -> int:
        """The number of hostile cases."""
        return round(self.jobs / self.hostile_every) if self.hostile_every else 0


def run(config: ChaosConfig, folder: Path) -> AuditReport:
    """Run the fleet under faults and return the audit.

    Raises:
        AssertionError: a server or a producer failed. The fleet's failures are in the report.
    """
    began = time.monotonic()
    report = AuditReport(title=f"{config.jobs:,} jobs, {config.seconds:.0f} s of chaos")
    with ExitStack() as stack:
        server = _start_servers(config, folder / "redis", stack)
        s3 = stack.enter_context(FaultyS3Process(config.seed, folder / "s3.log"))
        receiver = stack.enter_context(FlakyReceiver(config.seed))
        planned = _plan(config, receiver)
        environment = {
            **_environment(config, server, s3, receiver),
            "IMAGEFLEET_BULK_ALLOW": str((folder / "dataset").resolve()),
        }
        gateways = stack.enter_context(Gateways(environment, folder / "gateways"))
        dataset = stack.enter_context(Dataset(config.rows, environment, folder / "dataset"))
        cases = draw_hostile(config.seed, config.hostile_count, planned)
        producers = stack.enter_context(
            Producers(planned, environment | gateways.environment, folder)
        )
        hostile = stack.enter_context(
            HostileInput(cases, environment, folder, _HOSTILE_SHARE * config.seconds)
        )
        fleet = stack.enter_context(_fleet(config, environment, folder))
        prometheus = config.prometheus and stack.enter_context(
            Prometheus(config.prometheus, folder / "prometheus", environment, fleet)
        )
        watcher = RecordWatcher(server.lanes(NAMESPACE), [job.id for job in planned])
        injector = _injector(config, fleet, server, gateways, dataset)
        injector.run(config.seconds, watcher.poll)
        relent(receiver, hostile, gateways, fleet)
        finish_undisturbed(config, fleet, producers, hostile, watcher, dataset)
        report_faults(report, config, injector, fleet.started, s3.faults())
        if prometheus:
            audit_prometheus(report, prometheus, fleet, watcher, server)
        audit_ends(report, fleet.ended)
        report_exit_codes(report, fleet.stop())
        dataset.audit(report)
        audit(report, planned, producers.accepted(), hostile, watcher, s3, receiver, config)
    report.note("time", "total, seconds", round(time.monotonic() - began))
    return report


def _injector(
    config: ChaosConfig, fleet: Fleet, server: Servers, gateways: Gateways, dataset: Dataset
) -> FaultInjector:
    others = (
        Killed("a gateway", gateways, _KILL_GATEWAY_EVERY_S),
        Killed("the command of a dataset", dataset, _KILL_COMMAND_EVERY_S),
    )
    return FaultInjector(fleet, server, config.seed, config.lease_s, others, config.pace)


def relent(
    receiver: FlakyReceiver, hostile: HostileInput, gateways: Gateways, fleet: Fleet
) -> None:
    """End all faults but those of the store."""
    receiver.always_up = True
    hostile.relent()
    gateways.refill()
    fleet.thaw_all()
    fleet.replace_all(_LAST_DRAIN_S)


def audit(
    report: AuditReport,
    planned: Sequence[PlannedJob],
    accepted: Sequence[str],
    hostile: HostileInput,
    watcher: RecordWatcher,
    s3: FaultyS3Process,
    receiver: FlakyReceiver,
    config: ChaosConfig,
) -> None:
    by_id = {job.id: job for job in planned}
    hostile_ids, every = ids_of(hostile.cases), watcher.read_all()
    of_hostile = {job_id: status for job_id, status in every.items() if job_id in hostile_ids}
    statuses = {job_id: status for job_id, status in every.items() if job_id not in hostile_ids}
    audit_records(report, planned, accepted, statuses, watcher.first_terminal)
    with environ(s3.environment):
        store = open_store(s3.direct_url)
    oracle = Oracle.of_model(config.model) if config.is_real else FAKE
    audit_images(report, by_id, statuses, store, of_hostile, oracle)
    audit_callbacks(report, planned, statuses, receiver)
    audit_tenants(report, planned, statuses)
    letters, hostile_letters = split_dead_letters(LaneDeadLetters(watcher.lanes).read())
    refusals = hostile.refusals()
    audit_hostile(report, hostile.cases, refusals, of_hostile, hostile_letters)
    audit_refusals(report, hostile.cases, refusals, by_id)
    failed = [job_id for job_id, status in statuses.items() if status.state is State.FAILED]
    audit_keys(report, watcher.lanes, failed, letters)


def audit_prometheus(
    report: AuditReport,
    prometheus: Prometheus,
    fleet: Fleet,
    watcher: RecordWatcher,
    server: OneServer | Cluster,
) -> None:
    """Compare the counters with the records once every living worker was scraped again."""
    prometheus.await_scrapes()
    scraped = read_metrics(prometheus.server, {worker.log.stem for worker in fleet.workers})
    audit_metrics(report, scraped, watcher.read_all(), server.outages)


def finish_undisturbed(
    config: ChaosConfig,
    fleet: Fleet,
    producers: Producers,
    hostile: HostileInput,
    watcher: RecordWatcher,
    dataset: Dataset,
) -> None:
    """Wait until the producers, all jobs and the dataset have ended. No more workers are killed,
    but storage still fails one put in ten."""
    left, changed_at, callbacks_due_at = -1, time.monotonic(), -_CALLBACKS_DUE_EVERY_S
    while time.monotonic() < changed_at + config.pace * config.stall_timeout_s:
        fleet.refill()
        dataset.refill()
        watcher.poll()
        waiting = sum(lane.client.zcard(f"{lane.namespace}:outbox") for lane in watcher.lanes)
        if left != len(watcher.open) + waiting:
            left, changed_at = len(watcher.open) + waiting, time.monotonic()
        if producers.done() and hostile.done() and not watcher.open and dataset.done():
            if time.monotonic() > callbacks_due_at + _CALLBACKS_DUE_EVERY_S:
                make_callbacks_due(watcher.lanes)
                callbacks_due_at = time.monotonic()
            if not fleet.any_stopping and is_idle(watcher.lanes, fleet.pids()):
                return
        time.sleep(0.1)


def _start_servers(config: ChaosConfig, folder: Path, stack: ExitStack) -> OneServer | Cluster:
    if not config.cluster:
        return OneServer(stack.enter_context(LocalRedisServer(folder)))
    servers = Cluster(folder)
    stack.enter_context(servers.cluster)
    return servers


def _plan(config: ChaosConfig, receiver: FlakyReceiver) -> list[PlannedJob]:
    drawn = draw_jobs(
        config.seed,
        jobs=config.jobs,
        seconds=0.9 * config.seconds,
        killers=0 if config.is_real else config.killers,
        callback_url=receiver.url,
        kinds=WITH_LANES if config.cluster else WITH_GATEWAYS,
    )
    return [for_real_model(job) for job in drawn] if config.is_real else drawn


def _fleet(config: ChaosConfig, environment: dict[str, str], folder: Path) -> Fleet:
    return Fleet(
        folder / "workers", environment, size=config.workers, main=run_worker, imports=_IMPORTS
    )


def _environment(
    config: ChaosConfig, server: Servers, s3: FaultyS3Process, receiver: FlakyReceiver
) -> dict[str, str]:
    return {
        **s3.environment,
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_NAMESPACE": NAMESPACE,
        **config.model_settings,
        "IMAGEFLEET_STORAGE_URL": s3.url,
        "IMAGEFLEET_LEASE_S": str(config.lease_s),
        "IMAGEFLEET_DRAIN_S": _DRAIN_S,
        # One job in five is delivered again here, and one in three of those once more. With the
        # default of 4, harmless prompts would become dead letters.
        "IMAGEFLEET_MAX_DELIVERIES": "10",
        "IMAGEFLEET_NEWER_MESSAGE_S": "5",
        "IMAGEFLEET_WEBHOOK_SECRETS": receiver.secret,
        "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.0/8",
        **(METRICS_SETTINGS if config.prometheus else {}),
    }


def report_faults(
    report: AuditReport,
    config: ChaosConfig,
    injector: FaultInjector,
    started: int,
    faults: Mapping[str, int],
) -> None:
    section = "injected faults"
    report.note(section, "seed", config.seed)
    for fault, count in injector.counts.items():
        report.note(section, fault, count)
    report.note(section, "workers started in all", started)
    report.note(section, "puts at S3", faults[PUTS])
    for what, count in sorted(faults.items()):
        if what != PUTS:
            report.note(section, f"of them {what}", count)


def report_exit_codes(report: AuditReport, codes: Sequence[int]) -> None:
    """Report workers that failed at the end. SIGTERM may end one before it installs its handler."""
    failed = [code for code in codes if code not in (0, -signal.SIGTERM)]
    report.expect_none("injected faults", "workers that failed at the end", failed)
