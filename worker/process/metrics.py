"""Define the Prometheus metrics of a worker process.

The module that causes an event counts it here. Labels take few values: none of them comes from a
job. What all workers have in common is in Redis and is exported by `imagefleet exporter`.
Source of the conventions: Prometheus' "Metric and label naming" and "Histograms and summaries".
"""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram, Info

WORKER: Final = Info("imagefleet_worker", "The name, release, model and devices of this worker.")
READY: Final = Gauge("imagefleet_ready", "1 while the worker takes work, else 0.")
CAPACITY: Final = Gauge("imagefleet_batch_capacity_slots", "Images in a full device batch.")
IN_FLIGHT: Final = Gauge(
    "imagefleet_worker_in_flight", "Messages that the worker has claimed and not acknowledged."
)

BATCHES: Final = Counter("imagefleet_batches", "Device batches that began.")
SLOTS: Final = Counter(
    "imagefleet_batch_slots", "Slots of the batches that began, by use: job, row, padding.", ["use"]
)
IMAGES: Final = Counter("imagefleet_images", "Images that the devices finished.")
STEP_SECONDS: Final = Histogram(
    "imagefleet_step_seconds",
    "Time between two denoising steps of a batch.",
    ["shape"],
    buckets=(0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 60.0),
)
BUSY_SECONDS: Final = Counter(
    "imagefleet_device_busy_seconds", "Time during which a batch was on the devices."
)
FILE_BYTES: Final = Counter(
    "imagefleet_image_file_bytes", "Bytes of the encoded image files.", ["format"]
)
FILE_PIXELS: Final = Counter(
    "imagefleet_image_file_pixels", "Pixels of the encoded image files.", ["format"]
)
BATCH_FAILURES: Final = Counter("imagefleet_batch_failures", "Device batches that failed.")
QUARANTINES: Final = Counter(
    "imagefleet_quarantines", "Times that the worker stopped taking work to check itself."
)
RECOMPILES: Final = Gauge(
    "imagefleet_recompiles", "Programs compiled since the worker was ready. It should stay 0."
)
TEXT_CACHE: Final = Gauge(
    "imagefleet_text_cache",
    "Texts found in memory (hits), in the store (stored), encoded (misses); bytes in memory.",
    ["of"],
)
TEXT_STORE_FAULTS: Final = Counter(
    "imagefleet_text_store_faults",
    "Encoded texts that the store did not return or take: read, late, damaged, write, busy.",
    ["fault"],
)
DEVICE_MEMORY: Final = Gauge(
    "imagefleet_device_memory_bytes",
    "Memory of each device: used, and the limit.",
    ["device", "of"],
)

STAGE_SECONDS: Final = Histogram(
    "imagefleet_job_stage_seconds",
    "Time of a successful job in each stage: waited, denoise, encode, upload.",
    ["stage"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0),
)
RETRIES: Final = Counter("imagefleet_job_retries", "Failed attempts that will be repeated.")
REDELIVERIES: Final = Counter(
    "imagefleet_redeliveries", "Claimed messages whose earlier delivery counted against them."
)
UPLOAD_FAILURES: Final = Counter(
    "imagefleet_upload_failures",
    "Failed tries to store an object of a job.",
)
INPUT_IMAGE_DELAYS: Final = Counter(
    "imagefleet_input_image_delays",
    "Returns of jobs to Redis because other jobs wait for their input images.",
)
LEASE_RENEWALS: Final = Counter("imagefleet_lease_renewals", "Heartbeats that renewed the lease.")
LEASES_LOST: Final = Counter("imagefleet_leases_lost", "Leases that ended while the worker lived.")
RECLAIMED: Final = Counter(
    "imagefleet_reclaimed_messages", "Messages requeued because the lease of their worker ended."
)
CALLBACKS: Final = Counter(
    "imagefleet_callback_tries", "Tries to deliver a callback, by result.", ["result"]
)
for _result in ("delivered", "retry", "gone", "refused"):
    CALLBACKS.labels(_result)  # from 0 on, or `increase` would leave out the first one
for _fault in ("read", "late", "damaged", "write", "busy"):
    TEXT_STORE_FAULTS.labels(_fault)
for _use in ("job", "row", "padding"):
    SLOTS.labels(_use)


def label_values(metric: Counter | Histogram, label: str) -> list[str]:
    """Return the values that a label of a metric has had."""
    return sorted({each.labels[label] for family in metric.collect() for each in family.samples})


def total(metric: Counter | Histogram, sample: str = "total", **labels: str) -> float:
    """Return the sum of a metric's samples, over all its labels but those that are given.

    Args:
        sample: `total` of a counter; `sum` or `count` of a histogram.
    """
    return sum(
        each.value
        for family in metric.collect()
        for each in family.samples
        if each.name.endswith(f"_{sample}") and labels.items() <= each.labels.items()
    )
