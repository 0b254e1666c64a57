"""Run Celery's command line in this process. Input: arguments. Output: an exit code."""

from typing import Any

import click
from celery.bin.celery import celery
from celery.platforms import EX_FAILURE

from imagefleet.worker.process.exit_codes import ExitCode


def run_celery(app: Any, arguments: list[str]) -> str | int | None:
    """Run Celery's command line as `app.start` does, but return its exit code."""
    celery.params[0].default = app
    code: str | int | None
    try:
        code = celery.main(args=arguments, standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except SystemExit as error:
        code = error.code
    return ExitCode.SOFTWARE if code == EX_FAILURE else code
