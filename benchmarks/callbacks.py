"""Measure how long a tenant's callbacks wait while the receivers of another tenant hang.

`python -m benchmarks.callbacks` starts its own Redis and one delivery loop, as a worker has it. The
tenant `loud` has hundreds of callbacks to receivers that accept a connection and never answer. Once
its first tries have failed, the tenant `quiet` gets callbacks for receivers that answer at once and
are new to the worker: at the address of those that hang, as behind a CDN or an ingress, and then at
addresses of their own. It measures the time from the outbox to the receiver.

It does not show name servers, TLS, networks between hosts, or several workers.
"""

import argparse
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from benchmarks.report import print_json
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import OutboxMessage
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop
from imagefleet.worker.webhooks.sender import Sender

SHARED_ADDRESS: Final = "127.0.0.1"
PLACES: Final = {
    "same_address": [SHARED_ADDRESS],
    "other_address": [f"127.0.0.{n}" for n in range(2, 250)],
}
FAILED_FIRST_S: Final = 12.0
"""A try lasts 10 s. After this the worker knows that the receivers hang."""
INTERVAL_S: Final = 0.5
"""Seconds between two callbacks of `quiet`."""
MAX_WAIT_S: Final = 300.0


def add_hanging(outbox: Outbox, stack: ExitStack, callbacks: int, receivers: int) -> None:
    """Add the callbacks of `loud`, to so many receivers at one address that never answer."""
    ports = []
    for _ in range(receivers):
        listener = stack.enter_context(socket.create_server((SHARED_ADDRESS, 0), backlog=1024))
        ports.append(listener.getsockname()[1])
    for number in range(callbacks):
        url = f"http://{SHARED_ADDRESS}:{ports[number % receivers]}/"
        outbox.add(_message(f"loud-{number}", url, "loud"))


def measure_waits(
    outbox: Outbox, loop: DeliveryLoop, hosts: list[str], callbacks: int
) -> list[float]:
    """Return the seconds that each callback of `quiet` took, `MAX_WAIT_S` if it did not arrive."""
    added: list[float] = []
    arrived: dict[int, float] = {}
    with ExitStack() as stack:
        for number in range(callbacks):
            address = hosts[number % len(hosts)]
            port = stack.enter_context(_receiver(address, number, arrived))
            added.append(time.monotonic())
            url = f"http://{address}:{port}/"
            outbox.add(_message(f"quiet-{hosts[0]}-{number}", url, "quiet"))
            loop.wake()  # as the worker does whose job has ended
            time.sleep(INTERVAL_S)
        deadline = time.monotonic() + MAX_WAIT_S
        while len(arrived) < callbacks and time.monotonic() < deadline:
            time.sleep(0.01)
    return [
        arrived.get(number, added_at + MAX_WAIT_S) - added_at
        for number, added_at in enumerate(added)
    ]


@contextmanager
def _receiver(address: str, number: int, arrived: dict[int, float]) -> Iterator[int]:
    """Yield the port of a receiver that notes when its callback arrives."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arrived.setdefault(number, time.monotonic())
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def _message(name: str, url: str, tenant: str) -> OutboxMessage:
    body = '{"type": "job.succeeded"}'
    return OutboxMessage(id=f"{name}.succeeded", job_id=name, url=url, body=body, tenant=tenant)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hanging", type=int, default=300, help="callbacks that hang")
    parser.add_argument("--receivers", type=int, default=30, help="receivers that hang")
    parser.add_argument("--callbacks", type=int, default=20, help="measured, at each address")
    return parser.parse_args()


def main() -> None:
    asked = _arguments()
    allow = AllowList.parse(["127.0.0.0/8"])
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        LocalRedisServer(Path(name) / "redis") as server,
        ExitStack() as stack,
    ):
        outbox = Outbox(connect(server.url), "callbacks")
        loop = DeliveryLoop(outbox, Sender(WebhookSecrets(), allow))
        add_hanging(outbox, stack, asked.hanging, asked.receivers)
        loop.start()
        time.sleep(FAILED_FIRST_S)
        print(f"{'address':16} {'median s':>10} {'longest s':>10}")
        for place, hosts in PLACES.items():
            waits = measure_waits(outbox, loop, hosts, asked.callbacks)
            middle, longest = statistics.median(waits), max(waits)
            print(f"{place:16} {middle:10.3f} {longest:10.3f}")
            figures |= {f"{place}_s_p50": round(middle, 3), f"{place}_s_max": round(longest, 3)}
        loop.stop()
    print_json("callbacks", {**vars(asked), **figures})


if __name__ == "__main__":
    main()
