"""Requeue the jobs of failed attempts, each after a pause that is kept in Redis."""

from typing import TYPE_CHECKING

from imagefleet.shared.errors import JobCancelled
from imagefleet.shared.jobs.failed_attempts import MAX_FAILURE_CHARACTERS
from imagefleet.shared.jobs.redis_keys import delayed_key, host_failures_key, job_key
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.text.printable import printable

if TYPE_CHECKING:
    from redis import Redis


class JobRetries:
    """This class retries the jobs of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._namespace = namespace
        self._delayed, self._failures = delayed_key(namespace), host_failures_key(namespace)
        self._retry = load_script(client, __package__, "failed_attempts", "retry")

    def retry(
        self,
        job_id: str,
        attempt: str,
        claim: tuple[str, str],
        pause_s: float,
        code: str,
        message: str = "",
    ) -> bool:
        """Requeue the job of an attempt that failed with the error `code`, after `pause_s`. It is
        counted in `retries`, kept in `failures`, and counted among the failures of its host.

        The job's message moves from its claim (claims hash, tag) to the delayed messages.
        Return False, with nothing changed, if the attempt no longer holds the job or the message.

        Raises:
            JobCancelled: the producer asked to cancel meanwhile.
        """
        keys = [job_key(self._namespace, job_id), claim[0], self._delayed, self._failures]
        cut = printable(message, MAX_FAILURE_CHARACTERS)
        answer = self._retry(keys=keys, args=[attempt, claim[1], pause_s, code, cut])
        if answer == -1:
            raise JobCancelled(f"job {job_id} was cancelled")
        return bool(answer)
