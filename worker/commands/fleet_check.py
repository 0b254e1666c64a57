"""Compare the settings of this host with the fleet, as a start does: a check of the doctor."""

import os
import platform
from collections.abc import Iterator
from contextlib import closing

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.membership import (
    folder_warning,
    members,
    refusal,
    shared_folders,
)
from imagefleet.shared.jobs.worker_status import Member, WorkerRegistry, WorkerState, WorkerStatus
from imagefleet.shared.redis_client.connection import connect_lanes, translate_errors
from imagefleet.shared.settings.doctor import Finding, Verdict
from imagefleet.shared.storage import open_store, place_of
from imagefleet.shared.text.printable import counted, mask_url
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.load_model import announced_model


def check_fleet(settings: WorkerSettings) -> Iterator[Finding]:
    """Say whether this host may join the workers that live. Digests are not compared: they need the
    weights.

    Raises:
        ImagefleetError: Redis does not answer, or the store's address is not valid.
    """
    url = settings.redis_url.get_secret_value()
    connected = connect_lanes(url, settings.namespace, lanes=settings.lanes)
    with closing(connected) as lanes, translate_errors(url):
        first = lanes.first
        others = members(WorkerRegistry(first.client, first.namespace).statuses())
    store = mask_url(place_of(settings.storage_url, open_store(settings.storage_url)))
    own = [_status(settings, model, store) for model in settings.every_model()]
    refusals = [sentence for each in own if (sentence := refusal(each, others, settings.namespace))]
    for sentence in dict.fromkeys(refusals):
        yield Finding(Verdict.FAILURE, sentence)
    hosts = shared_folders([*own, *others]).get(store)
    if hosts:
        yield Finding(Verdict.WARNING, folder_warning(store, hosts))
    if not refusals:
        text = f"this host may join the {counted(len(others), 'worker')} of {settings.namespace}"
        yield Finding(Verdict.OK, text)


def _status(settings: WorkerSettings, model: str, store: str) -> WorkerStatus:
    """Return what a worker with one of the models would say of itself. Where the model is faulty,
    which another check reports, only its store is compared."""
    serves_default = settings.serves_default and model == settings.every_model()[0]
    try:
        name, shapes = announced_model(settings.model_copy(update={"model": model, "models": ()}))
    except ImagefleetError:
        name, shapes, serves_default = "", (), False
    member = Member(
        serves_default=serves_default, store=store, may_differ=tuple(settings.may_differ)
    )
    return WorkerStatus(
        worker=f"{platform.node()}:{os.getpid()}:doctor",
        state=WorkerState.READY,
        model=name,
        shapes=tuple(map(str, shapes)),
        member=member,
    )
