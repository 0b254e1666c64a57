"""Views of commands in a pipe have whole lines, so that `grep` finds them."""

import pytest
from rich.text import Text

from imagefleet.producer.commands.output import make_console

LINE = Text(" ".join(["word"] * 100))


def test_a_line_in_a_pipe_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    make_console().print(LINE)
    assert capsys.readouterr().out == f"{LINE.plain}\n"


def test_a_width_that_the_environment_names_holds_in_a_pipe_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    make_console().print(LINE)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
