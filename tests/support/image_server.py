"""A web server for init images that responds as a test wants, also wrongly."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler

from imagefleet.producer.demo.local_http import LocalServer

WriteResponse = Callable[[BaseHTTPRequestHandler], None]
Response = bytes | WriteResponse
"""A body for status 200, or a function that writes the response."""


class ImageServer(LocalServer):
    """The server responds to each path as given, and to others with status 404.

    `with ImageServer({"/a.png": data}) as images: … images.url + "/a.png"`
    """

    def __init__(self, responses: Mapping[str, Response]) -> None:
        super().__init__(_handler(responses))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def status(code: int, **headers: str) -> WriteResponse:
    """Return a response without a body."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return answer


def cut_short(body: bytes) -> WriteResponse:
    """Return a response that ends after half of its announced length."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", str(2 * len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = True

    return answer


def stalled(body: bytes, released: threading.Event) -> WriteResponse:
    """Return a response that sends the body and then stalls until `released` is set."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()
        released.wait()

    return answer


class SlowImage:
    """A response that waits until `released` is set, and then sends the image."""

    def __init__(self, image: bytes) -> None:
        self._image = image
        self.released = threading.Event()
        self.begun = 0
        """Requests that arrived."""
        self._lock = threading.Lock()

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.begun += 1
        handler.send_response(200)
        handler.send_header("content-length", str(len(self._image)))
        handler.end_headers()
        self.released.wait()
        handler.wfile.write(self._image)


def _handler(responses: Mapping[str, Response]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            response = responses.get(self.path, status(404))
            if isinstance(response, bytes):
                self.send_response(200)
                self.send_header("content-length", str(len(response)))
                self.end_headers()
                self.wfile.write(response)
            else:
                response(self)

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
