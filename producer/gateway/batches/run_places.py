"""Say where the datasets of orders lie, and open their runs. The calls block.

A dataset lies below the folder of its tenant in the fleet's store: no caller names an address.
"""

from typing import Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.client.client import Client
from imagefleet.producer.gateway.batches.run_order import OrderRecord
from imagefleet.producer.gateway.batches.run_orders import RunOrders
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.queues import DEFAULT_MODEL

_RUNS: Final = "runs"
_MAX_OPENED: Final = 64
"""Runs whose plans are remembered, so that not every file of a dataset costs a look at its plan."""


class RunPlaces:
    """Opens the datasets of orders. Threads may share it."""

    def __init__(self, client: Client, orders: RunOrders) -> None:
        self._client = client
        self._orders = orders
        self._opened: dict[str, BulkRun] = {}

    def destination(self, record: OrderRecord) -> str:
        """Return the address of the dataset of an order, as workers name it.

        Raises:
            ConfigurationError: no worker has announced a store, and no setting names one.
            BrokerUnavailable.
        """
        if record.destination:
            return record.destination
        connection = self._client.connection
        offers = connection.offers()
        offer = offers.get(DEFAULT_MODEL) or next(iter(offers.values()), None)
        address = (offer and offer.storage_url) or connection.settings.storage_url
        if not address:
            raise ConfigurationError(
                "the fleet's store is not known, because no worker has announced it; set "
                "IMAGEFLEET_STORAGE_URL to the address that the workers use"
            )
        root, mark, query = address.partition("?")
        folder = self._orders.folder(record.order.tenant)
        return f"{root.rstrip('/')}/{_RUNS}/{folder}/{record.id}{mark}{query}"

    def open(self, record: OrderRecord) -> BulkRun:
        """Return the run of an order that is planned.

        Raises:
            Problem: 409, it is not planned yet, or could not be.
            PlanDamaged, UnknownRun: its dataset is gone.
        """
        if not record.bulk_run:
            message = f"{record.id} is {record.state}; it has no files"
            raise Problem(409, "not_planned", message)
        run = self._opened.get(record.id)
        if run is None:
            if len(self._opened) >= _MAX_OPENED:
                self._opened.clear()
            run = self._opened[record.id] = self._client.find_bulk(record.destination)
        return run
