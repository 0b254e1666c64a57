"""Start the command `imagefleet`, also as `python -m imagefleet.producer`.

Loading the commands takes a third of a second. Ctrl-C ends the process in that time too, without a
traceback.
"""

import signal


def main() -> None:
    """Load the commands and run the one that the command line names."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:  # a shell may let its background jobs ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from imagefleet.producer.commands.cli import main as run

    signal.signal(signal.SIGINT, on_interrupt)
    run()


if __name__ == "__main__":
    main()
