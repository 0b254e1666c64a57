"""Let signals stop a worker as documented. Celery's own handlers do not suit the threads pool.

Celery's handler of SIGQUIT, and of a second Ctrl-C, raises an error, because threads cannot be
killed. That of Ctrl-C ends with the exit code of a failure, and that of SIGHUP starts the worker
anew in a process that has devices open.
"""

import signal

from imagefleet.worker.startup.lifecycle import Lifecycle


def install_stop_signals(lifecycle: Lifecycle, *, ignore_hangup: bool) -> None:
    """Replace Celery's handlers. Call it after Celery has installed them.

    Ctrl-C and SIGHUP drain the worker as SIGTERM does, SIGQUIT requeues everything at once.
    """
    drain = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, drain)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignore_hangup else drain)
    signal.signal(signal.SIGQUIT, lambda *_: lifecycle.stop_claiming(at_once=True))
