"""`imagefleet demo` as a user runs it: images, a contact sheet, and no processes left running."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from tests.support.processes import ROOT, until

DEMO = [
    sys.executable,
    "-m",
    "imagefleet.producer",
    "demo",
    "--model",
    "fake:seconds=0.02,capacity=8",
]


def _children(pid: int) -> set[int]:
    """Return all descendants of process `pid`, read from /proc."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # the process ended since the listing
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_demo_makes_every_image_and_a_contact_sheet(tmp_path: Path) -> None:
    (tmp_path / "contact-sheet.png").write_bytes(b"of an earlier demo")
    done = subprocess.run(
        [*DEMO, "--out", str(tmp_path), "--prompt", "a red star", "--prompt", "a blue ring"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 job.started, 2 job.succeeded; signatures refused: 0" in done.stdout
    assert "contact-sheet-2.png" in done.stdout
    assert (tmp_path / "contact-sheet.png").read_bytes() == b"of an earlier demo"
    images = sorted((tmp_path / "jobs").glob("*/0.png"))
    assert len(images) == 2
    prompts = [json.loads(p.with_suffix(".json").read_text())["prompt"] for p in images]
    assert prompts == ["a red star", "a blue ring"]
    with Image.open(tmp_path / "contact-sheet-2.png") as sheet:
        assert sheet.width > 400


def test_ctrl_c_stops_everything_the_demo_started(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*DEMO[:-1], "fake:seconds=5,capacity=8", "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    started = until(lambda: found if len(found := _children(demo.pid)) >= 2 else None)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(300) == 130
    until(lambda: not any(_alive(pid) for pid in started))
    assert demo.stdout is not None
    demo.stdout.close()


@pytest.mark.parametrize("serve", [True, False])
def test_the_curl_line_of_the_demo_makes_an_image(tmp_path: Path, serve: bool) -> None:
    log = tmp_path / "demo.log"
    option = "--serve" if serve else "--no-serve"
    command = [*DEMO[:-1], "fake:seconds=2,capacity=1", option, "--out", str(tmp_path)]
    command += ["--prompt", "a red star", "--prompt", "a blue ring"]
    with log.open("wb") as output:
        demo = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        line = until(lambda: re.search(r"^ +(curl http://.*)$", log.read_text(), re.MULTILINE))[1]
        started = _children(demo.pid)
        made = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
        [image] = json.loads(made.stdout)["data"]
        if serve:
            with urllib.request.urlopen(image["url"], timeout=60) as answer:
                assert answer.headers["content-type"] == "image/png"
            until(lambda: "goes on serving HTTP" in log.read_text())
            demo.send_signal(signal.SIGINT)
        assert demo.wait(300) == 0, log.read_text()
        assert "2 job.started, 2 job.succeeded" in log.read_text()
        until(lambda: not any(_alive(pid) for pid in started))
    finally:
        demo.kill()
        demo.wait()


CTRL_C_DURING_A_FORK = """
import os, signal
from imagefleet.producer.commands.cli import main
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
main()
"""


def test_ctrl_c_during_a_fork_stops_the_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CTRL_C_DURING_A_FORK, *DEMO[3:], "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 130, done.stdout + done.stderr


def test_a_killed_demo_leaves_no_process_running(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*DEMO[:-1], "fake:seconds=5,capacity=8", "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started = until(lambda: found if len(found := _children(demo.pid)) >= 2 else None)
    os.kill(demo.pid, signal.SIGKILL)
    demo.wait()
    until(lambda: not any(_alive(pid) for pid in started))


def test_a_worker_that_cannot_start_ends_the_demo_with_the_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO[:-1], "/no/such/model", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 1
    assert "/no/such/model" in done.stderr
    assert "Traceback" not in done.stderr
