"""A proxy that loses answers: the server has made them, and the client does not get them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import httpx

_NOT_FORWARDED = {"host", "connection", "transfer-encoding", "content-length"}


class DroppingProxy:
    """`with DroppingProxy(url, drops=1) as proxy: … proxy.url`"""

    def __init__(self, url: str, drops: int) -> None:
        """
        Args:
            url: where requests go.
            drops: so many answers are lost, the first ones.
        """
        self.dropped = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, url, drops))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: DroppingProxy, url: str, drops: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _NOT_FORWARDED}
            answer = httpx.post(url + self.path, content=body, headers=headers, timeout=900)
            if proxy.dropped < drops:
                proxy.dropped += 1
                self.connection.close()
                return
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _NOT_FORWARDED:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
