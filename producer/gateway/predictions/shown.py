"""Show the job of a caller as a prediction, with addresses of this gateway."""

from functools import partial
from typing import Any

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.jobs.tenant_jobs import name_of
from imagefleet.shared.jobs.prediction import prediction_of
from imagefleet.shared.jobs.status import JobStatus


def shown(gateway: Gateway, base_url: str, caller: Caller, status: JobStatus) -> dict[str, Any]:
    """Return the prediction of a job.

    Args:
        base_url: that of the gateway, without a slash at its end.
    """
    return prediction_of(
        status,
        url=url_of(base_url, name_of(caller, status)),
        address_of=partial(gateway.images.address, base_url, status),
    )


def url_of(base_url: str, name: str) -> str:
    """Return the address of a prediction."""
    return f"{base_url}/v1/predictions/{name}"
