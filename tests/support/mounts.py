"""Processes in a namespace of their own, where they may mount file systems."""

import subprocess

from tests.support.processes import ROOT


def in_namespace(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in a new mount namespace. `arguments` are its $1, $2 and so on."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=ROOT)
