"""Processes that may mount what they like, where nobody else sees it."""

import subprocess

from tests.support.processes import ROOT


def in_namespace(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `script` of the shell; `arguments` are its $1 and on."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=ROOT)
