"""Know when the images of jobs expire: one sorted set in Redis for each store of a namespace.

An attempt that starts, and a job that succeeds, write the entry of the job in the script that
changes its record (`transition.lua`). Workers claim the entries that are due, delete the images and
remove the entries. A record may expire before its images do, so an entry needs no record.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.jobs.redis_keys import expiring_key, job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_MAX_SCANNED: Final = 100
"""Due entries that one call of the script looks at. Redis serves no other client meanwhile."""
_CLAIM_S: Final = 600.0
"""Seconds after which a claimed entry is due again, and after which the entry of a job that runs is
looked at again."""


@dataclass(frozen=True, kw_only=True)
class KeepTime:
    """How long the images of one job are kept."""

    key: str
    """The sorted set of the store that holds them."""
    seconds: float | None
    """None means for ever."""


@dataclass(frozen=True, kw_only=True)
class ClaimedExpiry:
    """One worker deletes the images of this job now."""

    job_id: str
    due: str
    """The score that the claim gave the entry. An attempt that starts meanwhile changes it."""


class ImageExpiry:
    """The entries of one store. Threads may share it."""

    def __init__(
        self,
        client: "Redis",
        namespace: str,
        store_address: str,
        default_keep_s: float | None = None,
    ) -> None:
        """
        Args:
            store_address: the address by which all workers open the store, with its endpoint; see
                `announced_url`. Two stores with one address would lose each other's images.
            default_keep_s: how long the images of jobs without a `keep` are kept; None: for ever.
        """
        self._client = client
        self._key = expiring_key(namespace, store_address)
        self._namespace = namespace
        self._default_keep_s = default_keep_s
        self._claim = load_script(client, __package__, "expiry_claim")
        self._finish = load_script(client, __package__, "expiry_finish")

    def keep_time(self, request: JobRequest) -> KeepTime:
        """Return how long the images of a job with this request are kept."""
        return KeepTime(key=self._key, seconds=request.keep or self._default_keep_s)

    def claim(self) -> ClaimedExpiry | None:
        """Claim the job whose images expired first. Return None if there is none.

        Jobs that are queued or running are passed over.
        """
        answer = cast(
            list[str],
            self._claim(
                keys=[self._key], args=[job_key(self._namespace, ""), _CLAIM_S, _MAX_SCANNED]
            ),
        )
        return ClaimedExpiry(job_id=answer[0], due=answer[1]) if answer else None

    def is_claimed(self, claimed: ClaimedExpiry) -> bool:
        """Return whether the images may still be deleted: no attempt of the job has started since
        the claim, and no worker has claimed the entry again."""
        return self._client.zscore(self._key, claimed.job_id) == float(claimed.due)

    def forget(self, claimed: ClaimedExpiry) -> None:
        """Remove an entry that names no job."""
        self._client.zrem(self._key, claimed.job_id)

    def finish(self, claimed: ClaimedExpiry) -> bool:
        """Remove the entry of a job whose images are deleted, and note the time in its record.

        Return False if the job was started again meanwhile; then nothing is changed.
        """
        keys = [self._key, job_key(self._namespace, claimed.job_id)]
        return bool(self._finish(keys=keys, args=[claimed.job_id, claimed.due]))
