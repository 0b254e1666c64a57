"""Start the command `imagefleet-worker`, also as `python -m imagefleet.worker`.

Ctrl-C ends the process without a traceback until Celery handles it: before that no job is claimed.
"""

import signal


def main() -> None:
    """Load the commands and run the one that the command line names."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from imagefleet.worker.commands.cli import main as run

    run()


if __name__ == "__main__":
    main()
