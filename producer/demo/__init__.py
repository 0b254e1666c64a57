"""`imagefleet demo`: the whole system on this machine, from prompts to a contact sheet.

Starts Redis, a worker on 8 virtual CPU devices and a callback receiver, submits through the Python
client, shows progress, and stops everything it started, also on Ctrl-C.
"""

import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from imagefleet.producer.client import Client, Job
from imagefleet.producer.demo.processes import WorkerProcess
from imagefleet.producer.demo.receiver import CallbackReceiver
from imagefleet.producer.demo.report import Progress, print_report
from imagefleet.producer.demo.sheet import contact_sheet
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.model import CallbackEvent, JobStatus, State
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
_CALLBACK_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class DemoParts:
    """What runs while the demo runs."""

    client: Client
    worker: WorkerProcess
    receiver: CallbackReceiver


def run_demo(prompts: Sequence[str], out: Path, model: str, parameters: dict[str, Any]) -> int:
    """Returns the exit code: 0 if every prompt became a picture."""
    console = Console()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with ExitStack() as running, _stopped_by_signals():
        try:
            with _put_off():
                parts = _start(running, out, model)
            jobs = _submit(parts, prompts or PROMPTS, parameters)
            finished, clock = _watch(console, parts, jobs)
            _await_callbacks(parts.receiver, len(jobs))
            counts, refused = parts.receiver.counts(), parts.receiver.refused
        except KeyboardInterrupt:
            console.print("\nstopping …")
            return 130
    sheet = _make_sheet(finished, out)
    clock["everything, start to stop"] = time.monotonic() - started
    print_report(console, finished, clock, counts, refused, sheet, out)
    return 0 if all(status.state is State.SUCCEEDED for status in finished) else 1


def _start(running: ExitStack, out: Path, model: str) -> DemoParts:
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
    worker = WorkerProcess(environment, out / "worker.log")
    running.callback(worker.stop)
    worker.start()
    client = Client(server.url)
    running.callback(client.close)
    return DemoParts(client=client, worker=worker, receiver=receiver)


def _submit(parts: DemoParts, prompts: Sequence[str], parameters: dict[str, Any]) -> list[Job]:
    run = time.strftime("%Y%m%d-%H%M%S")
    entries = [
        {"prompt": prompt, "id": f"{run}-{number:02d}"}
        for number, prompt in enumerate(prompts, start=1)
    ]
    return parts.client.submit_many(
        entries, callback_url=parts.receiver.url, callback_events=_CALLBACKS, **parameters
    )


def _watch(
    console: Console, parts: DemoParts, jobs: Sequence[Job]
) -> tuple[list[JobStatus], dict[str, float]]:
    """Poll until all jobs ended, showing them. Also the seconds of the stages seen from here."""
    submitted = time.monotonic()
    clock: dict[str, float] = {}
    ids = [job.id for job in jobs]
    with Progress(console, len(jobs)) as progress:
        while True:
            found = parts.client.statuses(ids)
            progress.show(found)
            if "worker start, load, compile" not in clock and _begun(found):
                clock["worker start, load, compile"] = time.monotonic() - submitted
            if all(status.done for status in found):
                clock["first step to last upload"] = (
                    time.monotonic() - submitted - sum(clock.values())
                )
                return found, clock
            if (code := parts.worker.exit_code()) is not None:
                raise ImagefleetError(
                    f"the worker ended with exit code {code}:\n{parts.worker.last_words()}"
                )
            time.sleep(_POLL_S)


def _begun(found: Sequence[JobStatus]) -> bool:
    return any(status.started_at is not None for status in found)


def _await_callbacks(receiver: CallbackReceiver, jobs: int) -> None:
    deadline = time.monotonic() + _CALLBACK_PATIENCE_S
    while receiver.counts().total() < 2 * jobs and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _make_sheet(finished: Sequence[JobStatus], out: Path) -> Path | None:
    pictures = [
        (out / image.key, status.request.prompt)
        for status in finished
        if status.result is not None
        for image in status.result.images
    ]
    if not pictures:
        return None
    contact_sheet(pictures, out / "contact-sheet.png")
    return out / "contact-sheet.png"


@contextmanager
def _put_off() -> Iterator[None]:
    """A signal that comes meanwhile counts afterwards. In the midst of a fork Python would drop its
    KeyboardInterrupt, and the demo go on."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that nothing it started stays behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
