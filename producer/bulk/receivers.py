"""Check the address that is to receive the events of a run, and describe the run to it.

Input: an address and a tenant, as a caller gives them. Output: a `RunReceiver`. Nothing is sent.
"""

from dataclasses import dataclass
from typing import Self

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import check_name
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.text.printable import mask_credentials


@dataclass(frozen=True, kw_only=True)
class CallbackAddress:
    """Where the events of a run are sent, and whose secrets sign them."""

    url: str
    tenant: str | None

    @classmethod
    def parse(cls, url: object, tenant: object) -> Self | None:
        """Return the address that a caller gives; None if he gives none.

        Raises:
            InvalidRequest: it is wrong as that of a job would be, or only a tenant is given.
        """
        if tenant is not None:
            _check_tenant(tenant, is_used=url is not None)
        if url is None:
            return None
        checked = JobRequest.parse({"prompt": "any", "callback_url": url}).callback_url
        assert checked is not None
        return cls(url=checked, tenant=None if tenant is None else str(tenant))

    def receiver(self, run: BulkRun) -> RunReceiver:
        """Return the receiver of `run`, which its events call by its id."""
        return RunReceiver(url=self.url, name=run.id, tenant=self.tenant, data=describe_run(run))


def describe_run(run: BulkRun) -> dict[str, object]:
    """Return what each event says of a run, beside its id and what was counted."""
    return {"destination": mask_credentials(run.destination), **planned_counts(run.plan)}


def planned_counts(plan: Plan) -> dict[str, int]:
    """Return how many rows are planned, and how many are not made."""
    return {"rows": plan.rows, "rejected": plan.rejected, "duplicates": plan.duplicates}


def _check_tenant(tenant: object, *, is_used: bool) -> None:
    field = "callback_tenant"
    if not is_used:
        raise InvalidRequest(field, tenant, "needs callback_url, whose callbacks its secrets sign")
    if not isinstance(tenant, str):
        raise InvalidRequest(field, tenant, "must be text")
    try:
        check_name(tenant)
    except ValueError as error:
        raise InvalidRequest(field, tenant, str(error)) from None
