"""Create the Celery app that `celery -A imagefleet.worker.app worker` and `imagefleet-worker` run.

Importing this module reads the settings, because Celery needs a module-level app. It connects to
nothing.
"""

import logging
import os
import sys
from typing import Any

from celery import Celery
from celery.signals import after_setup_logger, after_setup_task_logger

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.queues import queue_name
from imagefleet.shared.redis_client.connection import celery_url, transport_options
from imagefleet.worker.celery_app.bootsteps import install_steps
from imagefleet.worker.celery_app.json_output import print_json, say_json
from imagefleet.worker.celery_app.tasks import add_bulk_task, add_render_task
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.process.log_filter import add_filter
from imagefleet.worker.process.log_format import use_json, use_text
from imagefleet.worker.settings.unknown_variables import unknown_variable_warnings
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.lifecycle import Lifecycle


def create_app(settings: WorkerSettings) -> Celery:
    """Return a Celery app whose workers serve the queues of their model, or those named by `-Q`."""
    if settings.models:
        raise ConfigurationError(
            "IMAGEFLEET_MODELS needs the command imagefleet-worker, which runs a process for one "
            "model after the other"
        )
    redis_url = settings.redis_url.get_secret_value()
    if settings.in_cluster:  # Celery cannot speak to one, so it serves only this process
        broker, backend, options = "memory://localhost", "disabled://", {}
    else:
        broker = backend = celery_url(redis_url)
        options = transport_options(redis_url)
    app = Celery("imagefleet", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(
        task_default_queue=queue_name(settings.namespace, None, None, None),
        worker_pool="threads",  # JAX must not be forked; a solo pool blocks Celery's own loop
        worker_concurrency=settings.post_threads,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        task_acks_late=True,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_expires=settings.retention_s,
        result_backend_always_retry=True,
        worker_enable_remote_control=False,  # ours takes its place: see `remote_control`
        control_exchange=settings.namespace,
        event_exchange=f"celeryev.{settings.namespace}",
        event_queue_prefix=f"celeryev.{settings.namespace}",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=options,
        result_backend_transport_options=options,
    )
    lifecycle = Lifecycle(settings)
    add_render_task(app, lifecycle)
    add_bulk_task(app, lifecycle)
    install_steps(app, lifecycle)
    return app


def _set_up_logger(logger: logging.Logger, **_: Any) -> None:
    add_filter(logger)
    if _settings.log_format == "json":
        use_json(logger)
    else:
        use_text(logger)


after_setup_logger.connect(_set_up_logger)
after_setup_task_logger.connect(_set_up_logger)


def _warn_of_unknown_variables(*, as_json: bool) -> None:
    for warning in unknown_variable_warnings(os.environ):
        if as_json:
            say_json(warning, logging.WARNING)
        else:
            print(f"imagefleet-worker: warning: {warning}", file=sys.stderr)


try:
    _settings = WorkerSettings.load()
    if _settings.log_format == "json":
        print_json()
    _warn_of_unknown_variables(as_json=_settings.log_format == "json")
    app = create_app(_settings)
except ConfigurationError as error:
    print(f"imagefleet-worker: {error}", file=sys.stderr)
    sys.exit(ExitCode.CONFIG)
