"""`imagefleet doctor`: check what a producer needs: Redis, workers, and the store of the images."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import click

from imagefleet.producer.bulk.worker_formats import how_to_write, workers_without
from imagefleet.producer.commands.client_command import exit_on_errors
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.connection.misspelled_variables import misspelled_variable_warnings
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import ImagefleetError, StorageDenied
from imagefleet.shared.jobs.membership import (
    differing_hosts,
    folder_warning,
    members,
    shared_folders,
)
from imagefleet.shared.jobs.worker_status import WorkerState
from imagefleet.shared.settings.doctor import (
    Finding,
    Verdict,
    check_storage,
    check_variables,
    run_check,
)
from imagefleet.shared.settings.redis_doctor import check_redis
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import counted


@click.command()
@click.option("--redis-url", help="Address of Redis. Default: IMAGEFLEET_REDIS_URL.")
@click.option("--namespace", help="Prefix of all keys in Redis. Default: IMAGEFLEET_NAMESPACE.")
def doctor(redis_url: str | None, namespace: str | None) -> None:
    """Check the settings, Redis, workers and storage, as this host reaches them.

    It writes, reads and deletes a few keys in Redis and a small object in each store. On the host
    of a worker run `imagefleet-worker doctor`. The exit code is 1 if a check failed.
    """
    with exit_on_errors():
        settings = Settings.load(redis_url=redis_url, namespace=namespace)
    failed = False
    for name, check in _CHECKS.items():
        for finding in run_check(check, settings):
            click.echo(finding.line(name))
            failed |= finding.verdict is Verdict.FAILURE
        if failed:  # the checks below would fail for the same reason
            break
    sys.exit(int(failed))


def _check_variables(_: Settings) -> Iterator[Finding]:
    return check_variables(misspelled_variable_warnings(os.environ, GatewaySettings))


def _check_redis(settings: Settings) -> Iterator[Finding]:
    return check_redis(settings, runs_celery=False)


def _check_workers(settings: Settings) -> Iterator[Finding]:
    """Say how many workers are ready for each model that jobs may name."""
    connection = Connection(settings)
    statuses = connection.worker_statuses()
    ready = Counter(each.model for each in statuses if each.state is WorkerState.READY)
    offers = {offer.model: offer for offer in connection.offers().values()}
    if not offers:
        yield Finding(Verdict.WARNING, "no worker was ready yet; jobs wait until one is")
    for model, offer in offers.items():
        shapes = ", ".join(f"{height}x{width}" for height, width in offer.shapes)
        if count := ready[model]:
            text = f"{counted(count, 'ready worker')} for the model {model}: shapes {shapes}"
            yield Finding(Verdict.OK, text)
        else:
            text = f"no worker is ready for the model {model}; its jobs wait until one is"
            yield Finding(Verdict.WARNING, text)
    for wanted in BulkFormat:
        if without := workers_without(wanted, statuses):
            text = f"{counted(len(without), 'worker')} cannot write datasets of format {wanted}"
            yield Finding(Verdict.WARNING, f"{text}; {how_to_write(wanted, without)}")


def _check_hosts(settings: Settings) -> Iterator[Finding]:
    """Say which workers differ from most others of the fleet."""
    statuses = Connection(settings).worker_statuses()
    warnings = [
        *map(str, differing_hosts(statuses)),
        *(folder_warning(*each) for each in shared_folders(statuses).items()),
    ]
    yield from (Finding(Verdict.WARNING, text) for text in warnings)
    if not warnings and members(statuses):
        yield Finding(Verdict.OK, "all workers agree in models, stores and shapes")


def _check_stores(settings: Settings) -> Iterator[Finding]:
    """Check the store of each model, or the one that this host's setting names."""
    connection = Connection(settings)
    addresses = connection.store_addresses()
    if not addresses:
        text = "unknown until a worker was ready, unless IMAGEFLEET_STORAGE_URL is set"
        yield Finding(Verdict.WARNING, text)
    checked = set[str]()
    for address in addresses:
        try:
            store = connection.store_of(address)
            if store.url not in checked:
                checked.add(store.url)
                yield from _check_store(store)
        except ImagefleetError as error:
            yield Finding(Verdict.FAILURE, str(error))


def _check_store(store: ObjectStore) -> Iterator[Finding]:
    try:
        yield from check_storage(store)
    except StorageDenied as error:
        store.exists("check")  # it fails too if nothing may be read
        text = f"can only be read; `delete`, and jobs with images, need more: {error}"
        yield Finding(Verdict.WARNING, text)


_CHECKS: Final[dict[str, Callable[[Settings], Iterator[Finding]]]] = {
    "settings": _check_variables,
    "redis": _check_redis,
    "workers": _check_workers,
    "hosts": _check_hosts,
    "storage": _check_stores,
}
