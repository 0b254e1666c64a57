"""Receive the signed callback of a job in an HTTP server of your own.

The workers and this program need the same secret. The workers must also be allowed to call this
machine, because by default they call public addresses only. Start a worker with

    export IMAGEFLEET_WEBHOOK_SECRETS=whsec_$(openssl rand -base64 32)
    export IMAGEFLEET_CALLBACK_ALLOW=127.0.0.1

and run this program with the same secret:

    export IMAGEFLEET_REDIS_URL=redis://localhost:6379/0
    python examples/callbacks.py
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from threading import Thread

from imagefleet import Client, InvalidSignature, verify_webhook

SECRETS = os.environ.get("IMAGEFLEET_WEBHOOK_SECRETS", "").split(",")

events: Queue[dict | InvalidSignature] = Queue()
seen: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            verify_webhook(headers, body, SECRETS)
        except InvalidSignature as error:
            self.send_response(401)
            events.put(error)
        else:
            self.send_response(204)
            if headers["webhook-id"] not in seen:  # a callback may arrive more than once
                seen.add(headers["webhook-id"])
                events.put(json.loads(body))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the server's access log quiet."""


def main() -> None:
    if not all(SECRETS):
        raise SystemExit("set IMAGEFLEET_WEBHOOK_SECRETS to the secret of the workers: whsec_…")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    with Client() as client:
        job = client.submit(
            "a large yellow star", callback_url=f"http://127.0.0.1:{server.server_port}/"
        )
        job.result(timeout=300)
    try:
        event = events.get(timeout=60)
    except Empty:
        raise SystemExit("no callback came within 60 s; see the logs of the workers") from None
    if isinstance(event, InvalidSignature):
        raise SystemExit(f"{event}; IMAGEFLEET_WEBHOOK_SECRETS differs from that of the workers")
    assert event["data"]["id"] == job.id
    print(f"{event['type']}: {event['data']['result']['images'][0]['url']}")
    server.shutdown()


if __name__ == "__main__":
    main()
