"""Deliver the callbacks of every lane of a fleet: each outbox has a loop of its own.

So a lane that does not answer delays no callback of another, and keeps at most the senders that one
claim may have. The loops share the permits of this worker's senders: to a receiver they are one
worker.
"""

import time
from collections.abc import Callable, Sequence

from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop, MessageSender
from imagefleet.worker.webhooks.receiver_limits import SenderPermits


class LaneDelivery:
    """The loops of all lanes, which run from `start` to `stop`."""

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        sender: MessageSender,
        count_workers: Callable[[], int],
    ) -> None:
        """Take the outbox of each lane, and a function as that of `DeliveryLoop`."""
        permits = SenderPermits(len(outboxes))
        self._loops = [
            DeliveryLoop(
                outbox,
                sender,
                count_workers=count_workers,
                permits=permits,
                on_sender_free=self._wake_all,
                lanes=len(outboxes),
            )
            for outbox in outboxes
        ]

    def start(self) -> None:
        """Start the threads."""
        for loop in self._loops:
            loop.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Claim no more, and wait up to `timeout_s` for the messages being sent."""
        deadline = time.monotonic() + timeout_s
        for loop in self._loops:
            loop.stop(0.0)
        for loop in self._loops:
            loop.stop(max(0.0, deadline - time.monotonic()))

    def wake(self, lane: int) -> None:
        """Look for callbacks of a lane at once: one was put into its outbox."""
        self._loops[lane].wake()

    def _wake_all(self) -> None:
        for loop in self._loops:
            loop.wake()
