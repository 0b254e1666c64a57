"""The local Redis server as a program."""

import importlib.util

import pytest

from imagefleet.shared.redis_client.local_server import main


def test_without_a_server_the_program_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="found no Redis server; install Redis or Valkey"):
        main(["--port", "6379"])
