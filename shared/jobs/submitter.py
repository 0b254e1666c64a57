"""Accept jobs with `submit.lua`: all of a call, or none.

Input: requests with their ids. Output: whether each id is new. A job whose id has a record already,
for the same parameters, is not accepted twice.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.message_arguments import stored_text
from imagefleet.shared.jobs.offers import Offer, strengths_of
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.redis_keys import job_key, known_queues_key, limits_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.resend import Resender
from imagefleet.shared.jobs.submit_errors import (
    check_same_request,
    id_in_use_error,
    queue_full_error,
)
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_ACCEPTED: Final = "accepted"
_DIFFERENT: Final = "different"
_UNCOUNTED: Final = "uncounted"
_UNKNOWN: Final = "unknown"
"""`submit.lua` takes this where the waiting jobs of other lanes are not known yet."""
_NO_OFFERS: Final[Mapping[str, Offer]] = {}
_MAX_CALLS: Final = 3
"""A record may change between two calls. One that is not UTF-8 never equals what is read of it."""


class JobSubmitter:
    """The submitter accepts jobs of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._namespace = namespace
        self._script = load_script(client, __package__, "count_waiting", "submit")
        self._resender = Resender(client, namespace)

    def submit(
        self,
        jobs: Iterable[tuple[str, JobRequest]],
        *,
        by_compile_key: bool = True,
        offers: Mapping[str, Offer] = _NO_OFFERS,
        trace_parent: str | None = None,
        elsewhere: Callable[[Collection[str]], Mapping[str, int]] | None = None,
    ) -> list[bool]:
        """Accept jobs, all or none. Return for each whether its id is new.

        Each job goes to the queue of its compile key and tenant. With `by_compile_key=False` (no
        worker has announced its shapes yet) it goes to a queue that workers of any shape read.

        Args:
            offers: by model name, as far as they are known. Their default strengths say how many
                steps a job with an image has.
            trace_parent: the span of the submission, as `traceparent` of W3C Trace Context.
            elsewhere: returns how many jobs of these tenants wait in other lanes; see
                `WaitingElsewhere`. Called if a limit concerns them. None: there is one lane.

        Raises:
            InvalidRequest: a record with this id has other parameters; nothing was accepted.
            QueueFull: more jobs would wait than are allowed; nothing was accepted.
        """
        jobs = list(jobs)
        queues = [
            queue_of(self._namespace, request, by_compile_key=by_compile_key) for _, request in jobs
        ]
        stored = self._accept(jobs, queues, offers, trace_parent, elsewhere)
        known = [(job_id, text) for (job_id, _), text in zip(jobs, stored, strict=True) if text]
        self._resender.resend_lost(known, by_compile_key=by_compile_key)
        return [not text for text in stored]

    def _accept(
        self,
        jobs: list[tuple[str, JobRequest]],
        queues: list[str],
        offers: Mapping[str, Offer],
        trace_parent: str | None,
        elsewhere: Callable[[Collection[str]], Mapping[str, int]] | None,
    ) -> list[str]:
        """Call the script. Return for each job the request of its record, '' if the job is new.

        The script accepts nothing while a record differs from its request by one byte. Only a seed
        that was drawn at random, or the spelling of another release, may differ: such a request is
        replaced by that of the record, also in its message, and the script is called again.
        """
        keys = [known_queues_key(self._namespace), limits_key(self._namespace)]
        message_of = partial(job_message, trace_parent=trace_parent)
        args: list[str] = []
        for (job_id, request), queue in zip(jobs, queues, strict=True):
            keys += [job_key(self._namespace, job_id), list_key(queue, request.priority)]
            text = stored_text(request)
            strengths = strengths_of(offers, request)
            args += [text, message_of(job_id, request, queue, stored=text, strengths=strengths)]
        different = ""
        args.append("" if elsewhere is None else _UNKNOWN)
        for _ in range(_MAX_CALLS):
            outcome, *answer = cast(list[Any], self._script(keys=keys, args=args))
            if outcome == _UNCOUNTED and elsewhere is not None:
                args[-1] = json.dumps(elsewhere(answer[0]))
                outcome, *answer = cast(list[Any], self._script(keys=keys, args=args))
            if outcome == _ACCEPTED:
                return cast(list[str], answer[0])
            if outcome != _DIFFERENT:
                raise queue_full_error(*answer)
            for number, stored in enumerate(answer[0]):
                if stored and stored != args[2 * number]:
                    different = jobs[number][0]
                    request = check_same_request(*jobs[number], stored)
                    strengths = strengths_of(offers, request)
                    args[2 * number : 2 * number + 2] = (
                        stored,
                        message_of(
                            different, request, queues[number], stored=stored, strengths=strengths
                        ),
                    )
        raise id_in_use_error(different)
