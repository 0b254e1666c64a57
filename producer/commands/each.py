"""Do the same for each id of a command line, so that one wrong id does not stop the others."""

import sys
from collections.abc import Callable, Mapping, Sequence

from imagefleet.producer.commands.output import echo, echo_fields
from imagefleet.shared.errors import (
    ImagefleetError,
    InvalidRequest,
    MessageRejected,
    UnknownJob,
    UnreadableRecord,
)


def for_each(
    ids: Sequence[str], act: Callable[[str], Mapping[str, object]], *, as_json: bool
) -> None:
    """Print what `act` returns for each id. The error of one does not stop the others."""
    errors: list[ImagefleetError] = []
    for each_id in ids:
        try:
            fields = act(each_id)
        except (InvalidRequest, MessageRejected, UnknownJob, UnreadableRecord) as error:
            errors.append(error)
            continue
        echo_fields({"id": each_id, **fields}, as_json=as_json)
    exit_with(errors)


def exit_with(errors: Sequence[ImagefleetError]) -> None:
    """Print `errors` and end the command with exit code 1, if there are any."""
    for error in errors:
        echo(f"imagefleet: {error}", err=True)
    if errors:
        sys.exit(1)
