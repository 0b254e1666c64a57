"""The command `imagefleet-worker doctor` checks a host before its worker starts.

Each check says what it found or what to do.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.settings.doctor import (
    Finding,
    Verdict,
    check_storage,
    check_variables,
    run_check,
)
from imagefleet.shared.settings.redis_doctor import check_redis
from imagefleet.shared.storage import open_store
from imagefleet.shared.text.printable import counted
from imagefleet.worker.commands.fleet_check import check_fleet
from imagefleet.worker.commands.setting_flags import name_flag, setting_flags
from imagefleet.worker.engine.fake.fake_engine import is_fake
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.process.preemption import is_preempted
from imagefleet.worker.process.status_server import StatusServer
from imagefleet.worker.process.systemd import read_unit_limits
from imagefleet.worker.settings.unknown_variables import unknown_variable_warnings
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.host_limits import (
    check_allowed_networks,
    check_clients,
    check_datasets,
    check_open_files,
    check_post_threads,
    check_stop,
    check_watchdog,
)
from imagefleet.worker.startup.load_model import load_model, model_options, read_model
from imagefleet.worker.startup.stores import open_shared_stores

if TYPE_CHECKING:
    from imagefleet.worker.engine.placement.mesh import Placement

Check = Callable[[WorkerSettings], Iterator[Finding]]
"""Yields what it finds. An error that it raises is a failure."""


@click.command()
@setting_flags()
def doctor(**flags: Any) -> None:
    """Check the settings, Redis, storage, model, fleet, devices and ports of this host.

    Run it as the user of the worker and with its settings, while no worker uses the devices. It
    writes, reads and deletes a few keys in Redis and small objects in the storage, and creates the
    folder of IMAGEFLEET_CACHE_DIR. It checks the settings against the
    model's configs, and whether the model fits the devices. Weights are not read; of a model from
    the Hub only configs and tokenizers are downloaded.

    \b
    Exit codes:
    0   no check failed
    78  configuration error: a check failed
    """
    failed = False
    try:
        settings = WorkerSettings.load(**flags)
    except ImagefleetError as error:
        _print("settings", Finding(Verdict.FAILURE, str(error)), flags)
        sys.exit(ExitCode.CONFIG)
    for name, check in _CHECKS.items():
        for finding in run_check(check, settings):
            _print(name, finding, flags)
            failed |= finding.verdict is Verdict.FAILURE
    sys.exit(ExitCode.CONFIG if failed else 0)


def _print(name: str, finding: Finding, flags: Mapping[str, object]) -> None:
    click.echo(replace(finding, text=name_flag(finding.text, flags)).line(name))


def _check_variables(_: WorkerSettings) -> Iterator[Finding]:
    return check_variables(unknown_variable_warnings(os.environ))


def _check_redis(settings: WorkerSettings) -> Iterator[Finding]:
    yield from check_redis(settings, runs_celery=True)
    yield from check_clients(settings)


def _check_storage(settings: WorkerSettings) -> Iterator[Finding]:
    yield from check_storage(open_store(settings.storage_url))
    shared = open_shared_stores(settings)
    shared.require_secret()
    programs = shared.executables
    if programs is not None:
        programs.check()
        yield Finding(Verdict.OK, f"{programs.url}: compiled programs can be stored")
    if settings.texts_url is not None:
        texts = open_store(settings.texts_url, "IMAGEFLEET_TEXTS_URL")
        texts.check()
        yield Finding(Verdict.OK, f"{texts.url}: encoded prompts can be stored")


def _check_model(settings: WorkerSettings) -> Iterator[Finding]:
    """Check the settings against each model, by the functions with which a worker loads it."""
    for each in _one_by_one(settings):
        try:
            setup = read_model(each)
        except ImagefleetError as error:
            yield Finding(Verdict.FAILURE, str(error))
            continue
        if setup is None:
            yield Finding(Verdict.WARNING, f"the model {each.model} makes test images")
            continue
        shapes = ", ".join(map(str, setup.shapes))
        text = f"the model {each.model}: shapes {shapes}, scheduler {setup.default_scheduler}"
        yield Finding(Verdict.OK, f"{text}, {setup.files.folder}; its weights are not checked")


def _check_cache(settings: WorkerSettings) -> Iterator[Finding]:
    from imagefleet.worker.engine.compile.private_folder import make_private

    make_private(settings.cache_dir)
    yield Finding(Verdict.OK, f"compiled programs are kept in {settings.cache_dir}")


def _check_host(settings: WorkerSettings) -> Iterator[Finding]:
    unit = read_unit_limits()
    yield from check_watchdog(settings, unit)
    yield from check_stop(settings, unit)
    yield from check_open_files(settings)


def _check_devices(settings: WorkerSettings) -> Iterator[Finding]:
    for fake in filter(lambda each: is_fake(each.model), _one_by_one(settings)):
        yield from check_post_threads(settings, load_model(fake).capacity)
    real = [each for each in _one_by_one(settings) if not is_fake(each.model)]
    if not real:
        return
    from imagefleet.worker.engine.options.mesh_spec import MeshSpec
    from imagefleet.worker.engine.placement.mesh import Placement, start_backend

    spec = MeshSpec.parse(settings.mesh, settings.devices)
    start_backend(spec.devices)
    placement = Placement.of(spec.devices, spec.model)
    device = placement.mesh.devices.flat[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    each_has = "" if memory is None else f", {memory / 2**30:.1f} GiB each"
    text = f"{placement.mesh.size} x {device.device_kind} ({device.platform}){each_has}"
    yield Finding(Verdict.OK, text)
    yield from check_post_threads(settings, placement.data * settings.per_device_batch)
    if device.platform == "cpu":
        yield Finding(Verdict.WARNING, "no accelerator: images of real models take minutes")
    for each in real:
        yield from _check_fit(each, placement)


def _check_fit(settings: WorkerSettings, placement: "Placement") -> Iterator[Finding]:
    """Check that a model, its LoRA and a batch fit. `_check_model` says what else is wrong."""
    from imagefleet.worker.engine.loading.build_engine import require_fit

    try:
        setup = read_model(settings)
    except ImagefleetError:
        return
    if setup is None:
        return
    try:
        need = require_fit(
            setup,
            placement,
            dtype=settings.dtype,
            per_device_batch=settings.per_device_batch,
            options=model_options(settings),
        )
    except ImagefleetError as error:
        yield Finding(Verdict.FAILURE, f"the model {settings.model}: {error}")
        return
    text = f"the model {settings.model} fits: it needs about {need.total / 2**30:.2f} GiB a device"
    yield Finding(Verdict.OK, text)


def _one_by_one(settings: WorkerSettings) -> list[WorkerSettings]:
    """Return the settings of the worker of each model."""
    return [
        settings.model_copy(update={"model": model, "models": ()})
        for model in settings.every_model()
    ]


def _check_metrics_port(settings: WorkerSettings) -> Iterator[Finding]:
    if settings.metrics_port is None:
        yield Finding(Verdict.OK, "IMAGEFLEET_METRICS_PORT is not set: no metrics are served")
        return
    address = settings.metrics_host, settings.metrics_port
    StatusServer(*address, lambda: "doctor", settings.namespace).start()
    port = settings.metrics_port or "0, any free one,"
    yield Finding(Verdict.OK, f"{settings.metrics_host} port {port} can be opened")


def _check_preemption(settings: WorkerSettings) -> Iterator[Finding]:
    url = settings.preemption_url
    if url is None:
        yield Finding(Verdict.OK, "IMAGEFLEET_PREEMPTION_URL is not set: SIGTERM ends the worker")
        return
    try:
        preempted = is_preempted(url)
    except ValueError as error:
        text = f"{url} does not answer, so a preemption comes without notice: {error}"
        yield Finding(Verdict.WARNING, text)
        return
    yield Finding(Verdict.OK, f"{url} answers {str(preempted).upper()}")


def _check_callbacks(settings: WorkerSettings) -> Iterator[Finding]:
    yield from check_allowed_networks(settings)
    if settings.webhook_secrets:
        yield Finding(Verdict.OK, f"signed with {counted(len(settings.webhook_secrets), 'secret')}")
    else:
        text = "IMAGEFLEET_WEBHOOK_SECRETS is empty: callbacks are sent without a signature"
        yield Finding(Verdict.WARNING, text)


_CHECKS: Final[dict[str, Check]] = {
    "settings": _check_variables,
    "redis": _check_redis,
    "storage": _check_storage,
    "model": _check_model,
    "fleet": check_fleet,
    "host": _check_host,
    "datasets": check_datasets,
    "cache": _check_cache,
    "devices": _check_devices,
    "metrics": _check_metrics_port,
    "notice": _check_preemption,
    "callbacks": _check_callbacks,
}
