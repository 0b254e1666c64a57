"""`imagefleet exporter`: export what Redis knows of a fleet to Prometheus."""

import signal
import sys
import threading

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.extras import how_to_install


@client_command
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9465,
    show_default=True,
    help="TCP port to listen on; 0 chooses a free one.",
)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option(
    "--model",
    "models",
    multiple=True,
    help="A model whose jobs count as its own, not as those of `other`, also before its first "
    "worker has announced it; a @revision is left out. It may be given several times.",
)
@click.option(
    "--deletion-costs",
    is_flag=True,
    help="Also write on the pods of workers, every 10 s, what their deletion costs, so that "
    "Kubernetes takes idle ones first. It needs the right to patch pods.",
)
def exporter(
    client: Client, port: int, host: str, models: tuple[str, ...], deletion_costs: bool
) -> None:
    """Export queues, workers, dead letters and callbacks to Prometheus.

    One exporter per namespace is enough. It reads Redis when it is asked for /metrics, says within
    5 seconds if Redis does not answer, and runs until SIGTERM or Ctrl-C. Workers export their own
    metrics: see IMAGEFLEET_METRICS_PORT.
    """
    try:
        from prometheus_client import make_wsgi_app

        from imagefleet.producer.fleet.metrics import FleetCollector
        from imagefleet.producer.fleet.snapshot import SnapshotReader
        from imagefleet.shared.jobs.fleet_label import labelled_registry
        from imagefleet.shared.process.http_server import HttpServer
    except ImportError:
        raise ConfigurationError(
            f"exporting needs prometheus-client; {how_to_install('metrics')}"
        ) from None

    declared = {name for each in models if (name := each.partition("@")[0])}
    collector = FleetCollector(SnapshotReader(client.settings).read, declared)
    registry = labelled_registry(collector, client.settings.namespace)
    try:
        server = HttpServer(host, port, make_wsgi_app(registry))
    except OSError as error:
        raise ConfigurationError(
            f"--port {port}: cannot listen on {host}: {error.strerror or error}"
        ) from None
    server.start()
    echo(f"metrics on {host} port {server.port}", err=True)
    stopped = threading.Event()
    if deletion_costs:
        _write_deletion_costs(client, stopped)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()
    server.stop()
    sys.exit(0)


def _write_deletion_costs(client: Client, stopped: threading.Event) -> None:
    from imagefleet.producer.fleet.deletion_costs import DeletionCosts
    from imagefleet.shared.process.kubernetes import SERVICE_ACCOUNT, Pods

    pods = Pods.of_this_cluster()
    if pods is None:
        raise ConfigurationError(
            f"--deletion-costs: this is no pod with a token in {SERVICE_ACCOUNT}; run the exporter "
            "in a pod with `automountServiceAccountToken: true`, or leave the option out"
        )
    costs = DeletionCosts(pods, client.fleet.workers.statuses)
    threading.Thread(
        target=costs.update_until, args=[stopped], name="deletion costs", daemon=True
    ).start()
