"""Let a request read a run: with the key of its tenant, or by a signed address."""

from typing import Final

from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.batches.orders_of_caller import keeper_of, runs_of
from imagefleet.producer.gateway.batches.run_order import OrderRecord
from imagefleet.producer.gateway.problems import Problem, unknown
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of

_find_reader: Final = caller_with(Scope.READ)


async def readable_run(
    request: Request, run_id: str, path: str, expires: str, signature: str
) -> OrderRecord:
    """Return the run that a request for `path` may read.

    Args:
        signature: '' if the address is not signed.

    Raises Problem (401, 403, 404), BrokerUnavailable.
    """
    gateway, keeper = gateway_of(request), keeper_of(request)
    if not signature:
        caller = await _find_reader(request)
        return await runs_of(request, caller).find(run_id)
    if not gateway.addresses.is_valid_path(path, expires, signature):
        message = "the signature of this address is wrong, or it has expired"
        raise Problem(403, "wrong_signature", message)
    record = await gateway.threads.run(keeper.orders.read, run_id)
    if record is None:
        raise unknown("run", run_id)
    return record
