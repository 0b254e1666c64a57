"""A command of the user gets each event on its standard input, without a shell in between."""

import json
import sys
from pathlib import Path

import click
import pytest

from imagefleet.producer.commands.notify_command import NotifyCommand
from tests.support.processes import until

EVENT = {"type": "run.progress", "data": {"id": "r", "progress": 10}}


def test_words_are_split_as_by_a_shell_and_run_by_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "with a blank"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    text = f"'{program}' \"two words\" $HOME a;b | c\\ d `id` *"
    NotifyCommand.parse(text).run(EVENT)
    shown = capfd.readouterr()
    assert json.loads(shown.err) == ["two words", "$HOME", "a;b", "|", "c d", "`id`", "*"]
    assert shown.out == ""


def test_the_event_is_one_line_of_json(tmp_path: Path) -> None:
    written = tmp_path / "events"
    command = NotifyCommand.parse(f"sh -c 'cat >> \"$0\"' {written}")
    command.run(EVENT)
    command.run({**EVENT, "type": "run.ended"})
    lines = written.read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["run.progress", "run.ended"]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (
            "sh -c 'echo no luck; exit 3'",
            "no luck\n--notify-command failed for run.progress: exit code 3\n",
        ),
        ("sh -c 'kill -9 $$'", "--notify-command failed for run.progress: exit code -9\n"),
        ("true", ""),
        ("sh -c 'printf \"\\033[31mred\"'", "\\x1b[31mred\n"),
    ],
)
def test_output_and_failures_are_printed(
    capfd: pytest.CaptureFixture[str], text: str, output: str
) -> None:
    NotifyCommand.parse(text).run(EVENT)
    assert capfd.readouterr().err == output


def test_a_command_that_hangs_is_killed_with_what_it_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = tmp_path / "pid"
    words = ("sh", "-c", f"sleep 1000 & echo $! > {pid}; wait")
    NotifyCommand(words=words, timeout_s=1.0).run(EVENT)
    assert "it did not end within 1 s and was killed" in capfd.readouterr().err
    until(lambda: not _runs(pid.read_text().strip()))


def _runs(pid: str) -> bool:
    """Return whether a process runs. One that nobody has waited for is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_program_that_cannot_be_run_any_more_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    NotifyCommand(words=(str(tmp_path / "gone"),)).run(EVENT)
    assert "run.progress: [Errno 2] No such file or directory" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must name a program"),
        ("  ", "must name a program"),
        ("sh 'a", "a quote is not closed"),
        ("nosuchprogram a", "there is no program 'nosuchprogram' here"),
        ("X=1 sh", "there is no program 'X=1' here"),
    ],
)
def test_a_command_that_cannot_run_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(click.UsageError, match=sentence):
        NotifyCommand.parse(text)
