"""A drain ends in time, or the process says that it did not and ends by force.

Each test has a process of its own: a drain ends its process.
"""

import subprocess
import sys

from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.processes import ROOT

_BEGINNING = """
import logging, time
from imagefleet.worker.startup import drain
logging.basicConfig()
vars(drain).update(DRAIN_GRACE_S=0.6)
"""


def _run(program: str) -> tuple[int, str]:
    command = [sys.executable, "-c", _BEGINNING + program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout + done.stderr


def test_a_process_whose_drain_hangs_says_so_and_ends() -> None:
    code, output = _run("drain.DrainTime(0.1, 0.0).begin(); time.sleep(900)")
    assert code == ExitCode.TEMPFAIL
    assert "the drain did not end in time" in output


def test_the_notice_shortens_a_drain_and_nothing_lengthens_it() -> None:
    code, output = _run(
        "one = drain.DrainTime(3600, 60); one.begin()\n"
        "print(one.left_s() > 3000, one.is_shortened)\n"
        "one.begin_for_preempted_host(); print(one.left_s() <= 60, one.is_shortened)\n"
        "one.begin(); print(one.left_s() <= 60)"
    )
    assert (code, output.split()) == (0, ["True", "False", "True", "True", "True"])


def test_the_time_of_a_preempted_host_is_never_the_longer_one() -> None:
    code, output = _run(
        "one = drain.DrainTime(60, 3600); one.begin_for_preempted_host(); print(one.left_s() <= 60)"
    )
    assert (code, output.strip()) == (0, "True")
