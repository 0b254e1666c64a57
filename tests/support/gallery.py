"""A web server that shows pictures, with the manners a test asks for."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler

from imagefleet.producer.demo.local_http import LocalServer

Shown = bytes | Callable[[BaseHTTPRequestHandler], None]
"""A body for status 200, or whoever answers."""


class Gallery(LocalServer):
    """`with Gallery({"/a.png": data}) as gallery: … gallery.url + "/a.png"`; else status 404."""

    def __init__(self, shown: Mapping[str, Shown]) -> None:
        super().__init__(_door(shown))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def status(code: int, **headers: str) -> Shown:
    """An answer without a body."""

    def answer(door: BaseHTTPRequestHandler) -> None:
        door.send_response(code)
        for name, value in headers.items():
            door.send_header(name, value)
        door.send_header("content-length", "0")
        door.end_headers()

    return answer


def broken_off(body: bytes) -> Shown:
    """Half of what was promised."""

    def answer(door: BaseHTTPRequestHandler) -> None:
        door.send_response(200)
        door.send_header("content-length", str(2 * len(body)))
        door.end_headers()
        door.wfile.write(body)
        door.close_connection = True

    return answer


def endless(body: bytes, released: threading.Event) -> Shown:
    """The body, and then nothing until `released`."""

    def answer(door: BaseHTTPRequestHandler) -> None:
        door.send_response(200)
        door.end_headers()
        door.wfile.write(body)
        door.wfile.flush()
        released.wait()

    return answer


def _door(shown: Mapping[str, Shown]) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = shown.get(self.path, status(404))
            if isinstance(found, bytes):
                self.send_response(200)
                self.send_header("content-length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)
            else:
                found(self)

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    return Door
