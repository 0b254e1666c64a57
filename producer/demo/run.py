"""Run the demo: the whole system on this machine, from prompts to a contact sheet.

The demo starts Redis, a worker on 8 virtual CPU devices, a callback receiver and an HTTP gateway,
submits jobs through the Python client and shows their progress. It stops everything it started,
also on Ctrl-C.
"""

import signal
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job
from imagefleet.producer.demo.gateway import DemoGateway
from imagefleet.producer.demo.processes import DemoProcess
from imagefleet.producer.demo.receiver import CallbackReceiver
from imagefleet.producer.demo.report import Progress, print_report
from imagefleet.shared.bulk.contact_sheet import contact_sheet
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.model import CallbackEvent, State
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.signature import new_secret

PROMPTS: Final = (
    "a small red circle on the left on a blue background",
    "a large yellow star in the center on a purple background",
    "a green triangle on the right on a white background",
    "a large white heart at the top on a black background",
    "a medium blue square at the bottom on a yellow background",
    "a large black ring in the center on a pink background",
    "a small yellow heart on the right on a green background",
    "a red square on the left on a white background",
    "a large pink star at the bottom on a blue background",
    "a medium orange circle at the top on a black background",
    "a white triangle in the center on a red background",
    "a small purple ring at the top on a yellow background",
    "a large blue heart on the right on a white background",
    "a medium yellow square on the left on a black background",
    "a red star at the top on a white background",
    "a large green circle at the bottom on a pink background",
)
_CALLBACKS: Final = [CallbackEvent.STARTED, CallbackEvent.SUCCEEDED, CallbackEvent.FAILED]
_POLL_S: Final = 0.1
_CALLBACK_TIMEOUT_S: Final = 10.0
_CALLERS_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class DemoServices:
    """The client, worker, callback receiver and gateway of a running demo."""

    client: Client
    worker: DemoProcess
    receiver: CallbackReceiver
    gateway: DemoGateway


def run_demo(
    prompts: Sequence[str],
    out: Path,
    model: str,
    parameters: dict[str, Any],
    *,
    serve: bool,
    browse: bool = False,
) -> int:
    """Run the demo and return the exit code: 0 if every job succeeded, 130 after Ctrl-C.

    Args:
        serve: Go on serving HTTP after the report, until Ctrl-C, which then is no error.
        browse: Then open the gateway's page, with images of the same prompts in its gallery.
    """
    console = Console()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with ExitStack() as running, _sigterm_as_ctrl_c():
        try:
            with _defer_signals():
                services = _start(running, out, model)
            jobs = _submit(services, prompts or PROMPTS, parameters)
            statuses, durations = _watch(console, services, jobs)
            _await_callbacks(services.receiver, len(jobs))
            counts, refused = services.receiver.counts(), services.receiver.refused
            sheet = _write_contact_sheet(statuses, out)
            durations["everything, from the start on"] = time.monotonic() - started
            print_report(console, statuses, durations, counts, refused, sheet, out)
            _await_callers(services, {status.id for status in statuses})
        except KeyboardInterrupt:
            console.print("\nstopping …")
            return 130
        if serve:
            if browse:
                services.gateway.open_page(prompts or PROMPTS)
            _serve(console)
    return 0 if all(status.state is State.SUCCEEDED for status in statuses) else 1


def _start(running: ExitStack, out: Path, model: str) -> DemoServices:
    data = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="imagefleet-demo-")))
    server = running.enter_context(LocalRedisServer(data))
    secret = new_secret()
    receiver = running.enter_context(CallbackReceiver(secret))
    environment = {
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_MODEL": model,
        "IMAGEFLEET_STORAGE_URL": f"file://{out}",
        "IMAGEFLEET_WEBHOOK_SECRETS": secret,
        "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
        "IMAGEFLEET_DRAIN_S": "2",
    }
    worker = DemoProcess("imagefleet.worker", environment, out / "worker.log")
    running.callback(worker.stop)
    worker.start()
    gateway = DemoGateway(environment, out / "gateway.log")
    running.callback(gateway.stop)
    gateway.start()
    client = Client(server.url)
    running.callback(client.close)
    return DemoServices(client=client, worker=worker, receiver=receiver, gateway=gateway)


def _submit(
    services: DemoServices, prompts: Sequence[str], parameters: dict[str, Any]
) -> list[Job]:
    run_name = time.strftime("%Y%m%d-%H%M%S")
    entries = [
        {"prompt": prompt, "id": f"{run_name}-{number:02d}"}
        for number, prompt in enumerate(prompts, start=1)
    ]
    return services.client.submit_many(
        entries, callback_url=services.receiver.url, callback_events=_CALLBACKS, **parameters
    )


def _watch(
    console: Console, services: DemoServices, jobs: Sequence[Job]
) -> tuple[list[JobStatus], dict[str, float]]:
    """Show the jobs until all have ended. Return their statuses, and the seconds of each stage."""
    submitted = time.monotonic()
    durations: dict[str, float] = {}
    ids = [job.id for job in jobs]
    with Progress(console, len(jobs)) as progress:
        while True:
            statuses = services.client.statuses(ids)
            progress.show(statuses)
            services.gateway.tell(console)
            if "worker start, load, compile" not in durations and _any_started(statuses):
                durations["worker start, load, compile"] = time.monotonic() - submitted
            if all(status.done for status in statuses):
                durations["first step to last upload"] = (
                    time.monotonic() - submitted - sum(durations.values())
                )
                return statuses, durations
            if (code := services.worker.exit_code()) is not None:
                raise ImagefleetError(
                    f"the worker ended with exit code {code}:\n{services.worker.log_tail()}"
                )
            time.sleep(_POLL_S)


def _any_started(statuses: Sequence[JobStatus]) -> bool:
    return any(status.started_at is not None for status in statuses)


def _await_callbacks(receiver: CallbackReceiver, jobs: int) -> None:
    deadline = time.monotonic() + _CALLBACK_TIMEOUT_S
    while receiver.counts().total() < 2 * jobs and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _await_callers(services: DemoServices, own: Collection[str]) -> None:
    """Wait until the gateway has answered whoever asked it for images.

    Args:
        own: ids of the demo's jobs.
    """
    deadline = time.monotonic() + _CALLERS_TIMEOUT_S
    asked = [job.id for job in services.client.jobs() if job.id not in own]
    while time.monotonic() < deadline and not all(map(services.gateway.answered, asked)):
        time.sleep(_POLL_S)


def _serve(console: Console) -> None:
    console.print("the demo goes on serving HTTP; Ctrl-C stops it")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("\nstopping …")


def _write_contact_sheet(statuses: Sequence[JobStatus], out: Path) -> Path | None:
    images = [
        ((out / image.key).read_bytes(), status.request.prompt)
        for status in statuses
        if status.result is not None
        for image in status.result.images
    ]
    if not images:
        return None
    sheet = _new_file(out)
    sheet.write_bytes(contact_sheet(images))
    return sheet


def _new_file(out: Path) -> Path:
    """Return where the contact sheet goes: beside those of earlier demos."""
    names = (f"contact-sheet-{number}.png" for number in count(2))
    return next(
        out / name for name in chain(["contact-sheet.png"], names) if not (out / name).exists()
    )


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM after the block instead of inside it.

    Python drops a KeyboardInterrupt that arrives during a fork, and the demo would continue.
    """
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM in the block like Ctrl-C, so that the demo stops everything it started."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
