"""Run the gateway until SIGTERM or Ctrl-C, and end its streams with a last event then."""

import asyncio
import logging
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from imagefleet.producer.gateway.access.authenticate import is_loopback
from imagefleet.producer.gateway.app import build_app
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.producer.gateway.web.connections import bound_connections
from imagefleet.producer.gateway.web.metrics import WATCHED_JOBS, serve_metrics
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.http_server import HttpServer
from imagefleet.shared.process.malloc import return_large_buffers

log = logging.getLogger("imagefleet.http")

END_WITHIN_S: Final = 2
"""Seconds that open requests have to end after a signal; their clients ask another gateway."""
_KEEP_ALIVE_S: Final = 75
"""Longer than load balancers keep idle connections, so that none sends into a closed one."""
_BACKLOG: Final = 2_048
_RETURNED_BYTES: Final = 1 << 18
"""Buffers of images, and of bodies and answers with images, are returned to the system."""


def serve(settings: GatewaySettings, host: str, port: int, on_ready: Callable[[int], None]) -> None:
    """Serve until a signal comes.

    Args:
        port: 0 chooses a free one.
        on_ready: called with the port once connections are accepted.

    Raises:
        ConfigurationError: the address cannot be listened on.
        BrokerUnavailable: Redis does not answer.
    """
    return_large_buffers(_RETURNED_BYTES)
    local = is_loopback(f"[{host}]" if ":" in host else host)
    require_keys = settings.http_require_keys
    if require_keys is None:
        require_keys = not local or bool(settings.http_user_header)
    gateway = Gateway(settings, require_keys=require_keys)
    gateway.client.check()
    metrics = _serve_metrics(settings, gateway)
    config = uvicorn.Config(
        build_app(gateway),
        host=host,
        port=port,
        backlog=_BACKLOG,
        http=bound_connections(settings.http_head_timeout_s, settings.http_send_timeout_s),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=END_WITHIN_S,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        _Server(config, gateway.watcher.close, on_ready).run()
    except SystemExit:  # uvicorn has logged why it cannot listen
        raise ConfigurationError(f"--port {port}: cannot listen on {host}") from None
    finally:
        if metrics is not None:
            metrics.stop()


def _serve_metrics(settings: GatewaySettings, gateway: Gateway) -> HttpServer | None:
    WATCHED_JOBS.set_function(gateway.watcher.watched)
    if settings.http_metrics_port is None:
        return None
    address = settings.http_metrics_host, settings.http_metrics_port
    server = serve_metrics(*address, settings.namespace)
    log.info("metrics on %s port %d", settings.http_metrics_host, server.port)
    return server


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it listens and when it ends."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_exit: Callable[[], None],
        on_ready: Callable[[int], None],
    ) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        await super().startup()
        if self.servers:
            self._on_ready(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_exit)
        super().handle_exit(sig, frame)
