"""Define what a caller orders over HTTP, a batch of OpenAI's or a run of our own, and its record.

Underneath both is one bulk run. The record has each moment that an order has passed, and its state
follows from these: no change of state can be lost or undone.
"""

import time
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.verification import Verification
from imagefleet.shared.jobs.model import Count, Model, Time

BATCH_PREFIX = "batch_"
RUN_PREFIX = "run_"
MAX_SHOWN_ERRORS = 20
"""A record has the errors of so many rows at most."""


class OrderState(StrEnum):
    """An order is in one of these states, which are those of OpenAI's batches."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED = (OrderState.COMPLETED, OrderState.FAILED, OrderState.EXPIRED, OrderState.CANCELLED)
"""An order in one of these states does not change any more."""
_LATEST_FIRST = (
    *ENDED,
    OrderState.CANCELLING,
    OrderState.FINALIZING,
    OrderState.IN_PROGRESS,
)


class RunOrder(Model):
    """A caller has ordered this. It never changes."""

    model_config = ConfigDict(extra="ignore")  # newer releases may write more fields
    id: str
    tenant: str | None
    key_id: str | None
    images_per_day: int | None
    """It is the quota of the caller's key."""
    max_priority: int
    priority: Count
    input_file_id: str
    endpoint: str = ""
    """All lines of a batch name this address; it is '' for a run of our own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a run of our own, as `plan_run` takes them."""
    callback_url: str | None = None
    """It receives the events of a run of our own."""
    metadata: dict[str, str] = Field(default_factory=dict)
    window_s: Count | None = None
    """Seconds after which it expires. None: never."""
    keep_s: Count | None = None
    """Seconds for which its output files are kept. None: as long as other files."""
    created_at: Time

    @property
    def is_batch(self) -> bool:
        return bool(self.endpoint)

    @property
    def expires_at(self) -> float | None:
        """Return when it expires, in Unix seconds; None: never."""
        return None if self.window_s is None else self.created_at + self.window_s

    @property
    def caller(self) -> Caller:
        """Return the caller whose quota is charged, and whose files may be read."""
        return Caller(
            key_id=self.key_id,
            name="",
            tenant=self.tenant,
            scopes=frozenset(),
            max_priority=self.max_priority,
            images_per_day=self.images_per_day,
        )


class LineError(Model):
    """A line of the input is wrong, or all of it is."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """It counts from 1. None: no line is meant."""


class OrderRecord(Model):
    """An order has this record."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())
    order: RunOrder
    in_progress_at: Time | None = None
    finalizing_at: Time | None = None
    completed_at: Time | None = None
    failed_at: Time | None = None
    expired_at: Time | None = None
    cancelling_at: Time | None = None
    cancelled_at: Time | None = None
    errors: tuple[LineError, ...] = ()
    """They say why it has failed, or why the first rows of a run have no images."""
    tries: Count = 0
    """So often a gateway began to plan it."""
    charged: Count = 0
    """So many images were charged to the quota of the key."""
    destination: str = ""
    """Its dataset lies at this address."""
    bulk_run: str = ""
    """The bulk run has this id."""
    model: str = ""
    rows: Count = 0
    """It counts the requests of the input, with the wrong ones."""
    rejected: Count = 0
    samples: Count = 0
    """Images that are planned."""
    done: Count = 0
    """Requests whose images are there, once it has ended."""
    failed: Count = 0
    made: Count | None = None
    """Images that are there, once it has ended. None: an older release let it end."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    verification: Verification | None = None
    """The latest one that was asked for."""

    @property
    def id(self) -> str:
        return self.order.id

    @property
    def state(self) -> OrderState:
        """Return the state, which follows from the latest moment."""
        for state in _LATEST_FIRST:
            if getattr(self, f"{state.value}_at") is not None:
                return state
        return OrderState.VALIDATING

    @property
    def must_end(self) -> OrderState | None:
        """Return the state in which it must end now, ready or not; None if it may go on."""
        if self.cancelling_at is not None:
            return OrderState.CANCELLED
        expires_at = self.order.expires_at
        return OrderState.EXPIRED if expires_at and expires_at <= time.time() else None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED
