"""gcloud accepts every command and option of the documents. It needs no account for that.

The blocks run in a shell in which gcloud has no account, so that it checks its arguments and then
refuses; all other programs do nothing.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is missing")

_BLOCK: Final = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OTHERS: Final = ("curl", "docker", "helm", "imagefleet", "kubectl", "make", "openssl", "printf")
_VARIABLES: Final = {
    "ACCOUNT": "a@b.iam.gserviceaccount.com",
    "ARCHIVE": "imagefleet.tar.gz",
    "BUCKET": "bucket",
    "IMAGE": "us-docker.pkg.dev/p/r/imagefleet",
    "NUMBER": "1",
    "PROJECT": "project",
    "REGION": "us-west4",
    "SHA256": "0" * 64,
    "ZONE": "us-west4-a",
}
_WITHOUT_ACCOUNT: Final = "You do not currently have an active account selected"


def _blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{number}", block)
        for page in sorted(ROOT.glob("docs/*.md"))
        for number, block in enumerate(_BLOCK.findall(page.read_text()))
        if "gcloud " in block
    ]


def _make_tools(folder: Path) -> None:
    """Make programs that do nothing, and a gcloud that says which of its calls failed, and why."""
    folder.mkdir()
    for name in _OTHERS:
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "gcloud").write_text(
        '#!/bin/sh\n"$GCLOUD" "$@" > "$GCLOUD_SAID" 2>&1 && exit\n'
        f'grep -q "{_WITHOUT_ACCOUNT}" "$GCLOUD_SAID" && exit\n'
        'echo "gcloud $*" >&2\nhead -5 "$GCLOUD_SAID" >&2\n'
    )
    for program in folder.iterdir():
        program.chmod(0o755)


@pytest.mark.parametrize("block", [pytest.param(text, id=name) for name, text in _blocks()])
def test_gcloud_accepts_each_command(block: str, tmp_path: Path) -> None:
    _make_tools(tmp_path / "bin")
    for file in (
        "worker.env",
        "prompts.csv",
        "deploy/gcloud/startup.sh",
        "dist/imagefleet-1.tar.gz",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    shutil.copy(ROOT / "deploy/gcloud/hosts.sh", tmp_path / "deploy/gcloud")
    environment = {
        **os.environ,
        **_VARIABLES,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "GCLOUD": str(shutil.which("gcloud")),
        "GCLOUD_SAID": str(tmp_path / "said"),
        "CLOUDSDK_CONFIG": str(tmp_path / "config"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_PROJECT": _VARIABLES["PROJECT"],
    }
    done = subprocess.run(
        ["bash", "-c", block], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
