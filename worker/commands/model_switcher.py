"""Serve several models, one at a time: run a worker process for one, drain it, run the next.

Each model gets a process of its own, so that all memory of the last one, on the devices and on the
host, is free before the next one is loaded. This process holds no model. It waits for the worker,
passes signals on to it, and reads from Redis what waits for each model (`next_model`).
"""

import logging
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

import redis

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.fleet_status import FleetReader
from imagefleet.shared.jobs.offers import OfferRegistry, OfferRenewal
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.redis_keys import model_switch_key
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.process.kubernetes import SERVER_VARIABLE
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.settings.settings import ENV_PREFIX
from imagefleet.worker.commands.next_model import (
    FirstSeen,
    SwitchPolicy,
    WaitingWork,
    next_model,
    waiting_by_model,
)
from imagefleet.worker.process.end_signals import heard_end_signals
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.process.systemd import notify_systemd
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.drain import DrainTime

log = logging.getLogger(__name__)

_POLL_S: Final = 2.0
_ENDED_BY_SWITCH: Final = (0, ExitCode.TEMPFAIL, -signal.SIGTERM)
"""Exit codes of a worker that was asked to drain; the last if it had not begun to claim."""


class ModelSwitcher:
    """Runs one worker process after the other until one ends that was not asked to."""

    def __init__(self, settings: WorkerSettings, arguments: Sequence[str]) -> None:
        """
        Args:
            settings: Those with `models`.
            arguments: Of the command of each worker.
        """
        self._settings = settings
        self._command = [sys.executable, "-m", "imagefleet.worker", *arguments]
        self._policy = SwitchPolicy(
            min_stay_s=settings.model_min_stay_s, max_wait_s=settings.model_max_wait_s
        )
        # Each pass asks once: the watchdog of systemd must be fed while Redis is away.
        url = settings.redis_url.get_secret_value()
        lanes = connect_lanes(url, settings.namespace, lanes=settings.lanes, retries=0)
        self._first_lane = lanes.first
        self._fleet = FleetReader(lanes)
        registry = OfferRegistry(lanes.first.client, lanes.first.namespace)
        self._offers = OfferRenewal(registry, settings.forget_models_s)
        self._names: dict[str, str] = {}
        """The announced name of each model that was loaded."""
        self._shapes: dict[str, tuple[str, ...]] = {}
        """By announced name: the shapes that this host makes with the model."""
        self._first_seen = FirstSeen()
        self._worker: subprocess.Popen[bytes] | None = None
        self._switching = False
        """Whether the worker was asked to drain for a switch."""
        self._stopping = False
        """Whether this process was asked to stop."""
        self._drain_time = DrainTime(settings.drain_s, settings.preempted_drain_s)
        self._hurried = False
        """Whether the worker was told a second time to stop."""

    def run(self) -> int:
        """Load each model once, the first one last, then switch by the policy. Return the exit
        code of the worker that ended by itself or was stopped.

        Raises:
            ConfigurationError: two of the models have one name.
        """
        for number in heard_end_signals():
            signal.signal(number, self._pass_on)
        try:
            return self._run()
        finally:
            if self._worker is not None:
                self._worker.terminate()
                self._worker.wait()

    def _run(self) -> int:
        first, *others = self._settings.models
        to_visit = [*others, first]
        model = to_visit[0]
        while True:
            code, following = self._serve(model, to_visit)
            if following is None or self._stopping or code not in _ENDED_BY_SWITCH:
                return code if code >= 0 else 128 - code
            log.info("switching from %s to %s", model, following)
            model = following

    def _serve(self, model: str, to_visit: list[str]) -> tuple[int, str | None]:
        """Run a worker with `model`. Return its exit code, and the model to load next, or None if
        it ended by itself."""
        worker = self._start(model)
        following: str | None = None
        ready_at: float | None = None
        while worker.poll() is None:
            notify_systemd("WATCHDOG=1")
            if not self._switching:
                status = self._read_status(worker.pid)
                if ready_at is None and status is not None and status.state is WorkerState.READY:
                    ready_at = time.monotonic()
                    self._note_ready(model, status, to_visit)
                if ready_at is not None and status is not None:
                    following = self._following(
                        model, status, time.monotonic() - ready_at, to_visit
                    )
                if following is not None and not self._stopping:
                    self._switching = True
                    worker.terminate()
            self._hurry_if_time_is_over(worker)
            time.sleep(0.1 if self._switching or self._stopping else _POLL_S)
        self._worker, self._switching = None, False
        return worker.returncode, following

    def _start(self, model: str) -> "subprocess.Popen[bytes]":
        environment = {
            name: value
            for name, value in os.environ.items()
            # Kubernetes cannot tell the worker why it is stopped: a switch stops it too.
            if name not in (f"{ENV_PREFIX}MODELS", "NOTIFY_SOCKET", SERVER_VARIABLE)
        }
        is_default = self._settings.serves_default and model == self._settings.models[0]
        environment[f"{ENV_PREFIX}MODEL"] = model
        environment[f"{ENV_PREFIX}SERVES_DEFAULT"] = str(is_default).lower()
        self._worker = subprocess.Popen(
            self._command,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process, which passes it on once
            preexec_fn=die_with_parent(),
        )
        if self._stopping:  # the signal came before there was a process to pass it to
            self._worker.terminate()
        return self._worker

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Let the worker drain; if it was asked already, or by SIGQUIT, requeue everything."""
        again, self._stopping = self._stopping, True
        self._drain_time.begin_for_signal()
        if self._worker is not None and (again or number == signal.SIGQUIT or not self._switching):
            self._worker.send_signal(number)

    def _hurry_if_time_is_over(self, worker: "subprocess.Popen[bytes]") -> None:
        """Let the worker requeue everything if Kubernetes left it less time than its own."""
        drain_time = self._drain_time
        if drain_time.is_shortened and not drain_time.left_s() and not self._hurried:
            self._hurried = True
            worker.terminate()

    def _read_status(self, pid: int) -> WorkerStatus | None:
        """Return the status of the worker process; None if it has none, or Redis is away."""
        prefix = f"{platform.node()}:{pid}:"
        try:
            statuses = self._fleet.workers.statuses()
        except redis.RedisError as error:
            log.warning("cannot read the status of the worker from Redis: %s", error)
            return None
        return next((each for each in statuses if each.worker.startswith(prefix)), None)

    def _note_ready(self, model: str, status: WorkerStatus, to_visit: list[str]) -> None:
        for other, name in self._names.items():
            if name == status.model and other != model:
                raise ConfigurationError(
                    f"IMAGEFLEET_MODELS: {other} and {model} are both called {name!r}; "
                    "jobs cannot tell them apart, so rename one"
                )
        self._names[model] = status.model
        self._shapes[status.model] = status.shapes
        if model in to_visit:
            to_visit.remove(model)
        if not to_visit:
            notify_systemd("READY=1")

    def _following(
        self, model: str, status: WorkerStatus, stayed_s: float, to_visit: Sequence[str]
    ) -> str | None:
        """Return the model to load next, or None to stay."""
        if to_visit:
            return to_visit[0]
        by_name = {name: each for each, name in self._names.items()}
        default = self._names[self._settings.models[0]] if self._settings.serves_default else ""
        try:
            self._offers.renew_if_due(self._names.values())
            name = next_model(
                status.model,
                by_name.keys() - {status.model},
                self._read_waiting(status.model, default),
                stayed_s=stayed_s,
                is_idle=not status.claims,
                policy=self._policy,
            )
            if name is None or not self._may_switch_to(name, status.worker):
                return None
        except redis.RedisError as error:
            log.warning("cannot read the queues from Redis: %s", error)
            return None
        except Exception:  # what is damaged in Redis must not end this host
            log.exception("cannot choose the next model, so %s stays", status.model)
            return None
        return by_name[name]

    def _read_waiting(self, current: str, default: str) -> dict[str, WaitingWork]:
        """Return what waits in Redis, by model. `current` is on the devices."""
        loaded = {current, DEFAULT_MODEL} if current == default else {current}
        queues = self._first_seen.add_ages(self._fleet.read().queues, loaded, time.monotonic())
        return waiting_by_model(queues, default, self._shapes)

    def _may_switch_to(self, name: str, worker: str) -> bool:
        """Return whether no other worker has switched to this model within the minimum stay. So the
        workers of a fleet do not all leave for one job."""
        key = model_switch_key(self._first_lane.namespace, name)
        held_ms = max(1, round(1000 * self._policy.min_stay_s))
        return bool(self._first_lane.client.set(key, worker, nx=True, px=held_ms))
