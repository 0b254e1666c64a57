"""`imagefleet serve`: let programs make images over HTTP."""

import logging
from typing import Final

import click

from imagefleet.producer.commands.client_command import exit_on_errors
from imagefleet.producer.commands.output import echo
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.extras import how_to_install

_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@click.option("--redis-url", help="Address of Redis. Default: IMAGEFLEET_REDIS_URL.")
@click.option("--namespace", help="Prefix of all keys in Redis. Default: IMAGEFLEET_NAMESPACE.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="TCP port to listen on; 0 chooses a free one.",
)
def serve(redis_url: str | None, namespace: str | None, host: str, port: int) -> None:
    """Serve the HTTP interfaces: OpenAI's Images API and others (docs/http.md).

    On a loopback address programs of this host need no key. On any other address each request needs
    one: see `imagefleet keys`. Several of these processes may serve one fleet. It runs until
    SIGTERM or Ctrl-C, and ends then within 3 seconds.
    """
    with exit_on_errors():
        try:
            from imagefleet.producer.gateway.gateway_settings import GatewaySettings
            from imagefleet.producer.gateway.serve import serve as run
        except ImportError:
            raise ConfigurationError(
                f"serving HTTP needs FastAPI and uvicorn; {how_to_install('http')}"
            ) from None
        logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT)
        settings = GatewaySettings.load(redis_url=redis_url, namespace=namespace)
        run(settings, host, port, lambda port: echo(_READY.format(host=host, port=port), err=True))


_READY: Final = "imagefleet serves HTTP on http://{host}:{port}/v1"
