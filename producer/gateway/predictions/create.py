"""Create a prediction: note its deadline, then submit its job."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.producer.gateway.problems import Problem, wrong_parameter
from imagefleet.shared.errors import BrokerUnavailable, ImagefleetError, InvalidRequest

_LATER_S: Final = 5
"""Seconds after its deadline in which no gateway may live to cancel a job that waits. From then on
no worker starts it."""


@dataclass(frozen=True, kw_only=True)
class NewPrediction:
    """A prediction as it is asked for."""

    name: str
    """The id, as the caller knows it."""
    parameters: Mapping[str, Any]
    """The job has these."""
    webhook: Mapping[str, Any]
    """These parameters of the job say where and when it is reported; empty: nowhere."""
    base_url: str
    """It is the gateway's, as the caller reaches it, and has no slash at its end."""
    cancel_after_s: int | None
    """None: it is not canceled."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The request has these names for parameters of the job, by ours."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """They are those of the request."""

    def job_parameters(self) -> dict[str, Any]:
        """Return the parameters with the time in which the job must start."""
        given = {**self.parameters, **self.webhook}
        if self.cancel_after_s is not None:
            latest = self.cancel_after_s + _LATER_S
            own = given.get("ttl", latest)
            given["ttl"] = min(latest, own) if isinstance(own, int | float) else own
        return given


async def create(gateway: Gateway, caller: Caller, new: NewPrediction) -> None:
    """Submit the job of a prediction, unless it is there.

    If a gateway dies meanwhile, the job has its deadline, or was not accepted.

    Raises what `TenantJobs.submit` raises.
    """
    began = time.monotonic()
    job_id = stored_id(caller.tenant, new.name)
    has_deadline = new.cancel_after_s is not None and await gateway.threads.run(
        gateway.deadlines.add, job_id, new.cancel_after_s
    )
    parameters = new.job_parameters()
    if new.webhook:
        parameters["callback_prediction"] = await _callback_prediction(gateway, caller, new)
    try:
        await gateway.jobs.submit(caller, parameters, name=new.name)
    except BrokerUnavailable:  # it may be accepted all the same
        raise
    except (Problem, ImagefleetError) as error:
        with suppress(BrokerUnavailable):
            if has_deadline and await gateway.jobs.find_each(caller, [new.name]) == [None]:
                await gateway.threads.run(gateway.deadlines.remove, job_id)  # else it is another's
        if isinstance(error, InvalidRequest):
            raise wrong_parameter(error, new.names, new.fields) from None
        raise
    if new.cancel_after_s is not None and time.monotonic() - began >= new.cancel_after_s:
        # A gateway may have found the deadline past before there was a job.
        await gateway.threads.run(gateway.deadlines.add, job_id, 0.0)


async def _callback_prediction(gateway: Gateway, caller: Caller, new: NewPrediction) -> str:
    """Return what makes callbacks show the prediction. That of a prediction which is there stays:
    this gateway may be reached by another address than the one that accepted it."""
    [known] = await gateway.jobs.find_each(caller, [new.name])
    if known is not None and known.request.callback_prediction is not None:
        return known.request.callback_prediction
    job_id = stored_id(caller.tenant, new.name)
    return str(gateway.addresses.of_prediction(new.base_url, job_id, new.name))
