"""Name the signals that end a worker, as far as this process hears them."""

import signal
from typing import Final

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def is_ignored(number: signal.Signals) -> bool:
    """Return whether the process was started to ignore a signal, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN


def heard_end_signals() -> list[signal.Signals]:
    """Return the signals that end a worker and that its parent did not let it ignore."""
    return [number for number in END_SIGNALS if not is_ignored(number)]
