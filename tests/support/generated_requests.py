"""Send requests that schemathesis draws from the OpenAPI document of a gateway."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
)
"""Every answer must stand in the document. That wrong data is refused is not asked: pydantic reads
`"3"` as a number."""
_CONFIG: Final = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
"""A job may wait for an address that does not answer, so 504 is right."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One run of schemathesis had these results."""

    requests: int
    output: str
    is_right: bool
    """Whether every answer stood in the document."""


def send_generated(
    url: str, key: str, folder: Path, *, phases: str, per_route: int, seed: int
) -> Generated:
    """Draw requests from the document of the gateway, send them, and check the answers.

    Args:
        url: the gateway's, without a path.
        phases: those of schemathesis; `coverage` sends about 1,300 requests by itself.
        per_route: at most so many in each other phase.
    """
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG)
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(config)),
        *("run", f"{url}/openapi.json", "--checks", ",".join(_CHECKS)),
        *("--header", f"Authorization: Bearer {key}", "--no-color", "--continue-on-failure"),
        *("--max-examples", str(per_route), "--seed", str(seed), "--no-shrink"),
        *("--phases", phases),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    output = done.stdout + done.stderr
    found = re.search(r"([0-9,]+) generated", output)
    assert found, output
    requests = int(found[1].replace(",", ""))
    return Generated(requests=requests, output=output, is_right=done.returncode == 0)
