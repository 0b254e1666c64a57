"""Run the demo's HTTP gateway, and say how to ask it for an image."""

import json
import re
import urllib.request
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from imagefleet.producer.demo.processes import DemoProcess

_READY: Final = re.compile(r"imagefleet serves HTTP on (http://\S+)/v1")
_ORDER_S: Final = 30.0
_PROMPT: Final = "a small red circle on the left on a blue background"


class DemoGateway:
    """An `imagefleet serve` process on a free port of this host, which asks for no keys."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._process = DemoProcess("imagefleet.producer", environment, log)
        self._is_told = False
        self._url: str | None = None

    def start(self) -> None:
        """Start the process; it serves after a second or two."""
        self._process.start(["serve", "--port", "0"])

    def stop(self) -> None:
        """End the process."""
        self._process.stop()

    def answered(self, job_id: str) -> bool:
        """Return whether a request that made this job was answered, as the log says."""
        return f" job={job_id} " in self._process.log_text()

    def tell(self, console: Console) -> None:
        """Print the address once, and a line that asks for an image, if the gateway serves."""
        if self._is_told or not (found := _READY.search(self._process.log_text())):
            return
        self._is_told = True
        self._url = found[1]
        body = json.dumps({"prompt": _PROMPT, "response_format": "url"})
        # The line must be copied as it is: neither wrapped nor with markup.
        for line in (
            f"page: {found[1]}/, while the demo runs. HTTP, from another terminal:",
            f"  curl {found[1]}/v1/images/generations -H 'Content-Type: application/json' "
            f"-d '{body}'",
        ):
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    def open_page(self, prompts: Sequence[str]) -> None:
        """Order images of these prompts, which the page's gallery then has, and open the page in
        the browser of this desktop, if there is one. Without a gateway nothing happens."""
        if self._url is None:
            return
        for prompt in prompts:
            body = json.dumps({"input": {"prompt": prompt}}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{self._url}/v1/predictions", body, headers)
            urllib.request.urlopen(request, timeout=_ORDER_S).close()
        webbrowser.open(f"{self._url}/#/gallery")
