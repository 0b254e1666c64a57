"""Finish a job: encode its images, upload them, record the result.

This runs in the threads of the Celery pool, one job per thread, while the devices run the next
batch.
"""

import time
from datetime import UTC, datetime
from typing import Any, Final

from imagefleet.shared.errors import ImagefleetError, LeaseLost, StorageUnavailable
from imagefleet.shared.jobs.callback_events import Callback, JobTimes, build_callback
from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat, JobError
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.result import LATENTS, ImageResult, JobResult, UsedLora
from imagefleet.shared.redis_client.grouped_calls import Gather
from imagefleet.shared.storage import ObjectStore, StoredObject
from imagefleet.shared.storage.job_keys import image_key, metadata_key
from imagefleet.shared.storage.retry import retry_while_unavailable
from imagefleet.worker.engine.contract.interface import Engine, ImageSpec, OutputArray
from imagefleet.worker.images.encode import EncodedImage, encode
from imagefleet.worker.images.encode_latents import encode_unfinished
from imagefleet.worker.images.inpainting import restore_kept_pixels
from imagefleet.worker.images.metadata import image_metadata, job_lora_metadata, metadata_file
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.current_attempts import CurrentAttemptCheck
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.message_end import MessageEnd
from imagefleet.worker.process import metrics
from imagefleet.worker.process.tracing import add_span, current_trace_parent, stage_span

_WAIT_PER_WORKER_S: Final = 0.05
_MAX_WAIT_SHARE: Final = 0.05
"""Seconds that the end of a job waits for others of its batch, for each worker of the fleet, and at
most which share of its time on the devices. They then share a round trip, and a write of Redis to
its disk."""


class JobFinisher:
    """Records the end of attempts. Safe to share between threads."""

    def __init__(
        self,
        store: ObjectStore,
        records: JobRecords,
        engine: Engine,
        worker: str,
        retry_time_s: float,
        in_flight: InFlight | None = None,
    ) -> None:
        """
        Args:
            retry_time_s: seconds that an upload is tried again while the store is unavailable.
            in_flight: the jobs of this worker, which share questions and round trips.
        """
        self._in_flight = InFlight() if in_flight is None else in_flight
        self._current_attempts = CurrentAttemptCheck(records, self._in_flight)
        self._store = store
        self._records = records
        self._engine = engine
        self._info = engine.info
        self._worker = worker
        self._retry_time_s = retry_time_s

    def finish(self, attempt: Attempt, end: MessageEnd | None = None) -> JobResult:
        """Wait for the images of the attempt, store them and record the job as succeeded. With
        `end` its message ends, too.

        Raises:
            LeaseLost: another attempt holds the job; nothing was recorded.
            ImagefleetError: why the job cannot succeed; the caller records it.
        """
        images = attempt.wait_for_images()
        _add_waiting_spans(attempt)
        timings = {
            "waited": round(max(0.0, attempt.began_at - attempt.submitted_at), 4),
            "denoise": round(attempt.device_s, 4),
            "encode": 0.0,
            "upload": 0.0,
        }
        stored_images = tuple(
            self._store_image(attempt, index, image, timings) for index, image in enumerate(images)
        )
        result = JobResult(
            images=stored_images,
            model=self._info.name,
            model_digest=self._info.digest,
            job_loras=tuple(
                UsedLora(**lora) for lora in job_lora_metadata(attempt.specs[0], self._info)
            ),
            worker=self._worker,
            timings={stage: round(seconds, 4) for stage, seconds in timings.items()},
        )
        event = _callback(CallbackEvent.SUCCEEDED, attempt, result=result)
        with stage_span("record"):
            self._record(attempt, result, event, end)
        for stage, seconds in timings.items():
            metrics.STAGE_SECONDS.labels(stage).observe(seconds)
        return result

    def fail(self, attempt: Attempt, error: ImagefleetError) -> None:
        """Record the job as failed, unless another attempt holds it."""
        reason = JobError(code=error.code, message=str(error))
        event = _callback(CallbackEvent.FAILED, attempt, error=reason)
        self._records.fail(attempt.job_id, attempt.token, reason, event)

    def cancel(self, attempt: Attempt) -> None:
        """Record the job as cancelled, unless another attempt holds it."""
        event = _callback(CallbackEvent.CANCELLED, attempt)
        self._records.cancel(attempt.job_id, attempt.token, event)

    def _store_image(
        self, attempt: Attempt, index: int, image: OutputArray, timings: dict[str, float]
    ) -> ImageResult:
        spec, file_format = attempt.specs[index], attempt.request.format
        flagged = index in attempt.flagged
        started = time.monotonic()
        metadata = image_metadata(
            job_id=attempt.job_id,
            spec=spec,
            shape=attempt.shape,
            info=self._info,
            truncated=self._engine.truncated(spec),
            nsfw=flagged,
        )
        with stage_span("encode"):
            encoded = self._encode(image, spec, metadata, file_format, flagged=flagged)
        timings["encode"] += time.monotonic() - started
        started = time.monotonic()
        key = image_key(attempt.job_id, spec.image_index, encoded.extension)
        document_key = metadata_key(attempt.job_id, spec.image_index)
        with stage_span("upload"):
            stored = self._put(attempt, key, encoded.data, encoded.content_type)
        timings["upload"] += time.monotonic() - started
        document = metadata_file(
            metadata,
            image=stored,
            pixel_sha256=encoded.pixel_sha256,
            own=attempt.request.metadata,
            attempt=attempt.deliveries,
            worker=self._worker,
            timings=timings,
            created_at=datetime.now(UTC),
        )
        self._put(attempt, document_key, document, "application/json")
        return ImageResult(
            index=spec.image_index,
            key=stored.key,
            url=stored.url,
            seed=spec.seed,
            sha256=stored.sha256,
            pixel_sha256=encoded.pixel_sha256,
            size=stored.size,
            height=attempt.shape.height,
            width=attempt.shape.width,
            format=file_format if spec.denoising_end is None else LATENTS,
            nsfw=flagged,
        )

    def _encode(
        self,
        image: OutputArray,
        spec: ImageSpec,
        metadata: dict[str, Any],
        file_format: ImageFormat,
        *,
        flagged: bool,
    ) -> EncodedImage:
        if spec.denoising_end is not None and self._info.latents is not None:
            return encode_unfinished(image, self._info.latents, metadata)
        if not flagged:
            image = restore_kept_pixels(image, spec.init_image)
        return encode(image, file_format.value, metadata)

    def _put(self, attempt: Attempt, key: str, data: bytes, content_type: str) -> StoredObject:
        def put() -> StoredObject:
            if not self._current_attempts.is_current(attempt):
                # This host may have been frozen. On other hardware its bytes may differ from those
                # that the current attempt has stored.
                raise LeaseLost(f"job {attempt.job_id}: another attempt holds it")
            try:
                return self._store.put(key, data, content_type)
            except StorageUnavailable:
                metrics.UPLOAD_FAILURES.inc()
                raise

        return retry_while_unavailable(put, self._retry_time_s, f"upload of {key}")

    def _record(
        self,
        attempt: Attempt,
        result: JobResult,
        event: Callback | None,
        end: MessageEnd | None,
    ) -> None:
        steps = attempt.specs[0].steps
        transition = self._records.succeed(
            attempt.job_id,
            attempt.token,
            result,
            event,
            steps=steps,
            keep=attempt.keep,
            acknowledgement=None if end is None else end.acknowledgement(result),
            gather=None if end is None else self._gather(attempt, end.claims.lease.workers),
        )
        if end is not None:
            end.note(transition)
        if not transition.happened and transition.attempt != attempt.token:
            raise LeaseLost(f"job {attempt.job_id}: another attempt holds it")

    def _gather(self, attempt: Attempt, workers: int) -> Gather:
        """Return how the end of an attempt waits for those whose images are there, too."""

        def expected() -> int:
            return sum(each.delivered == len(each.specs) for each in self._in_flight.attempts())

        wait_s = min(workers * _WAIT_PER_WORKER_S, attempt.device_s * _MAX_WAIT_SHARE)
        return Gather(expected=expected, max_wait_s=wait_s)


def _callback(
    event: CallbackEvent,
    attempt: Attempt,
    *,
    result: JobResult | None = None,
    error: JobError | None = None,
) -> Callback | None:
    """Return the callback for the end of an attempt, whose span is that of this thread."""
    parent = current_trace_parent() or attempt.trace_parent
    return build_callback(
        event,
        attempt.job_id,
        attempt.request,
        result=result,
        error=error,
        worker=attempt.worker,
        times=JobTimes(submitted_at=attempt.submitted_at, started_at=attempt.began_at),
        trace_parent=parent,
    )


def _add_waiting_spans(attempt: Attempt) -> None:
    """Add the spans of an attempt whose images are there: in the queue, until its batch, on the
    devices. The first begins by the clock of Redis' server, the others by that of this host."""
    now = time.time()
    on_devices = max(attempt.began_at, now - attempt.device_s)
    if attempt.submitted_at:
        add_span("queued", attempt.submitted_at, attempt.began_at)
    add_span("wait for a batch", attempt.began_at, on_devices)
    add_span("denoise and decode", on_devices, now)
