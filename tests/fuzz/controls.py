"""Send messages of the remote control. After each the worker answers, and a job is done."""

from collections.abc import Sequence
from typing import Any, Final

from tests.fuzz.cases import ControlCase
from tests.fuzz.fleet import NAMESPACE, FuzzedFleet, probe_sentence
from tests.fuzz.ledger import Ledger, Problem
from tests.support.control_messages import remote_control_app

_CHANNEL: Final = f"/0.{NAMESPACE}.pidbox"
_ANSWER_S: Final = 60.0


def send_controls(
    fleet: FuzzedFleet, ledger: Ledger, cases: Sequence[ControlCase]
) -> list[Problem]:
    """Send the messages one after the other, and stop at the first after which something fails."""
    if not cases:
        return []
    with remote_control_app(fleet.client.settings.redis_url.get_secret_value(), NAMESPACE) as app:
        control: Any = app.control
        for case in cases:
            listeners = fleet.redis.publish(_CHANNEL, case.control)
            if not control.ping(timeout=_ANSWER_S, limit=1):
                wrong = f"the worker answers no ping; {listeners} listened"
            else:
                seconds, wrong = probe_sentence(fleet)
                ledger.raise_to("seconds of a job after a control message", round(seconds, 2))
            ledger.count("control message", "no answer" if wrong else "the worker goes on")
            if wrong or not fleet.alive:
                sentence = f"after a control message: {wrong or 'the worker ended'}"
                return [Problem(sentence=sentence, suspects=[case.id])]
    return []
