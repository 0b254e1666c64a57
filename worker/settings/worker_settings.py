"""A worker reads these settings in addition to the shared ones. See docs/settings.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.parameter_types import MAX_KEEP_S
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.options.control_net_options import ControlNetOption
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.mesh_spec import MAX_PER_DEVICE_BATCH, MeshSpec
from imagefleet.worker.engine.options.model_options import MAX_PROMPT_CHUNKS
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.settings.several_models import check_models
from imagefleet.worker.settings.value_types import (
    CommaSeparated,
    Duration,
    License,
    PlainHttpUrl,
    Secrets,
    ShellWords,
    StoreUrl,
    Traits,
    UserPath,
)


class WorkerSettings(Settings):
    """One worker process has these settings. Methods parse those that hold several values."""

    webhook_secrets: Secrets = Field(
        default=(),
        description="Secrets, `whsec_…`, that sign the callbacks after Standard Webhooks. Every "
        "callback carries one signature per secret, so that secrets can be rotated.",
    )
    webhook_tenant_secrets: SecretStr = Field(
        default=SecretStr(""),
        description="Secrets that sign the callbacks of single tenants in the place of "
        "`webhook_secrets`: entries `TENANT=whsec_…`, separated by commas or line ends, or `@` and "
        "the path of a file that holds them. Several entries of one tenant all sign.",
    )
    callback_allow: CommaSeparated = Field(
        default=(),
        description="Hosts or private networks that callbacks and downloads of input images may "
        "reach, as in `127.0.0.1,10.0.0.0/8`. Default: public addresses only.",
    )
    model: str = Field(
        default="shapes",
        description="Model: `shapes` (bundled), a folder in diffusers format, a Hugging Face Hub "
        "id, a `.safetensors` file in the original format, or `fake[:seconds=…]` for tests. "
        "An empty value counts as not set.",
    )
    model_license: License | None = Field(
        default=None,
        description="Licence of the model, as in `apache-2.0`, for offers and the cards of "
        "datasets. Default: what the header of its README.md states.",
    )
    models: ShellWords = Field(
        default=(),
        description="Several models in place of `model`, separated by spaces and quoted as in a "
        "shell. One at a time is on the devices; the first is for jobs that name none. "
        "docs/operations.md says when the worker switches.",
    )
    model_min_stay_s: float = Field(
        default=60.0,
        ge=0,
        le=86400,
        description="With `models`: seconds for which a model stays on the devices at least.",
    )
    model_max_wait_s: float = Field(
        default=120.0,
        ge=0,
        le=86400,
        description="With `models`: seconds by which the oldest job of another model may be older "
        "than the oldest of the model on the devices.",
    )
    serves_default: bool = Field(
        default=True,
        description="Whether this worker makes the jobs that name no model. All workers that do "
        "should have the same model.",
    )
    may_differ: Traits = Field(
        default=(),
        description="In what this host and others of its fleet may differ, as in `model,digest`: "
        "`model` (of jobs that name none), `digest` (of one model), `store`, `shapes` (of one "
        "model, the first one). A host that differs in anything else does not start. Default: in "
        "nothing.",
    )
    forget_models_s: float = Field(
        default=30 * 86400.0,
        ge=86400,
        le=3650 * 86400,
        description="Seconds for which producers can submit jobs for a model after the last worker "
        "that offered it has left. Then the model is forgotten.",
    )
    lora: CommaSeparated = Field(
        (),
        description="LoRA files to merge, as in `a=/loras/a.safetensors:0.8,b=…`. Default: none.",
    )
    job_lora: CommaSeparated = Field(
        default=(),
        description="LoRA files that jobs may use, by the names that jobs give, as in "
        "`a=/loras/a.safetensors,b=…`. All of them stay on the devices. Default: none.",
    )
    controlnet: CommaSeparated = Field(
        default=(),
        description="ControlNets that jobs may use, by the names that jobs give, as in "
        "`canny=/nets/canny,b=…`: folders in diffusers format. Default: none.",
    )
    textual_inversion: CommaSeparated = Field(
        default=(),
        description="Textual inversions, by the tokens that stand for them in prompts, as in "
        "`<cat>=/embeddings/cat.safetensors,b=…`. Default: none.",
    )
    shapes: CommaSeparated = Field(
        default=(),
        description="Image sizes that this worker makes, as in `512x512,768x512` (height x width "
        "in pixels), with the default first. All are compiled before the worker is ready. "
        "Default: the model's native size.",
    )
    mesh: str | None = Field(
        default=None,
        description="Arrangement of the devices: `data=4,model=2` makes 4 copies of the weights "
        "and splits each over 2 devices, for a model too large for one device. Default: one copy "
        "on every device.",
    )
    devices: int | None = Field(
        None, ge=1, description="Local devices to use, on CPU virtual ones. Default: all, on CPU 8."
    )
    per_device_batch: int = Field(
        default=1,
        ge=1,
        le=MAX_PER_DEVICE_BATCH,
        description="Number of images that one copy of the weights denoises at a time.",
    )
    batching: Literal["static", "continuous"] = Field(
        default="static",
        description="`static`: whole batches, each as long as its longest job. `continuous`: a "
        "slot whose image is done takes the next one while its neighbours go on.",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="`float32`, the default on CPU, or `bfloat16`, that on accelerators."
    )
    max_num_inference_steps: int = Field(
        100, ge=1, le=1000, description="Largest number of denoising steps that a job may request."
    )
    scheduler: str | None = Field(
        None, description="Scheduler of jobs that name none (docs/schedulers.md), or the model's."
    )
    safety_checker: bool = Field(
        True, description="Whether the model's safety checker, if any, makes what it flags black."
    )
    text_encoder_3: bool = Field(
        True, description="Whether T5, the third text encoder of Stable Diffusion 3, is read."
    )
    int8_weights: bool = Field(
        False, description="Whether blocks of Z-Image, FLUX and SD 3 have weights of 8 bits."
    )
    prompt_chunks: int = Field(
        default=0,
        ge=0,
        le=MAX_PROMPT_CHUNKS,
        description="Largest length of a prompt with `prompt_weighting`, in chunks of 75 tokens. "
        "All workers of a model should have the same. 0: no such prompts.",
    )
    host_text_encoder: bool = Field(
        False, description="Whether this host's CPU encodes prompts of Z-Image, FLUX and SD 3."
    )
    text_cache_bytes: int = Field(
        268_435_456, ge=0, description="Bytes of this host for encoded prompts (docs/engine.md)."
    )
    texts_url: StoreUrl | None = Field(
        None, description="Address where workers share encoded prompts (docs/engine.md), or none."
    )
    cache_dir: UserPath = Field(
        default=Path("~/.cache/imagefleet").expanduser(),
        description="Folder for compiled programs. They are code: only this user may write there.",
    )
    programs_url: StoreUrl | None = Field(
        default=None,
        description="Address, in the forms of `storage_url`, where the workers share compiled "
        "programs, so that each is compiled once. They are code: only workers may write there.",
    )
    programs_secret: SecretStr | None = Field(
        default=None,
        description="Secret that signs the programs at `programs_url` and is required with it. A "
        "program with another signature is not loaded.",
    )
    storage_url: StoreUrl = Field(
        default="file://./out",
        description="Address where images are stored: `file:///folder`, "
        "`s3://bucket/prefix[?endpoint_url=…]` or `gs://bucket/prefix`.",
    )
    keep: Duration = Field(
        default=None,
        gt=0,
        le=MAX_KEEP_S,
        description="How long the images of jobs are kept after their success, as in `12h` or "
        "`30d`; a number is seconds. A job's own `keep` comes first. Needs the right to delete. "
        "Datasets and images that clients upload are not deleted. Default: for ever.",
    )
    input_image_jobs: int = Field(
        default=64,
        ge=1,
        description="Largest number of jobs that wait in this worker for the images they start "
        "from. One tenant has at most half of these jobs and one server a third; further jobs "
        "wait in Redis. Choose at least twice the images of a full batch. At most half of "
        "`post_threads` is used.",
    )
    input_image_fetches: int = Field(
        default=16,
        ge=1,
        description="Largest number of jobs whose input images are fetched at the same time, "
        "shared between tenants and servers in the same way. Each needs up to 20 MB of memory. "
        "Rows of datasets have as many fetches of their own.",
    )
    storage_retry_s: float = Field(
        default=600.0,
        ge=0,
        le=86400,
        description="Seconds for which a failed upload is retried before the worker checks its "
        "store. If that fails too, the job is requeued and the worker is quarantined.",
    )
    post_threads: int = Field(
        default=512,
        ge=2,
        description="Largest number of Celery pool threads, and so of jobs that wait for the "
        "devices, encode or upload. Choose at least three times the jobs of a full batch.",
    )
    poll_s: float = Field(
        0.02, gt=0, le=5, description="Seconds between two claims while the devices are free."
    )
    batch_timeout_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="Seconds that a batch that is not full waits for more jobs of its image size. "
        "A full batch never waits, and with `batching=continuous` no job does.",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="`text`, or `json`: one JSON object per line, with job and tenant."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="TCP port that serves `/metrics` (Prometheus), `/healthz` and `/readyz`. "
        "0 chooses a free one and logs it. Default: none is opened.",
    )
    metrics_host: str = Field(
        default="0.0.0.0",
        description="Address of this host that `metrics_port` is opened on. The answers name the "
        "model and hold no prompts; anybody who reaches the port can read them.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=2,
        le=3600,
        description="Seconds without a heartbeat after which others take over a worker's jobs.",
    )
    drain_s: float = Field(
        25.0, ge=0, le=3600, description="Seconds after SIGTERM for what is on the devices."
    )
    stop_timeout_s: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after SIGTERM until the platform kills this worker. `doctor` compares "
        "it with `drain_s`.",
    )
    preempted_drain_s: float = Field(
        default=8.0,
        ge=0,
        le=3600,
        description="The same if the platform takes the host away: after the preemption notice, or "
        "when Kubernetes stops a pod that nobody deleted. At most `drain_s` is used.",
    )
    preemption_url: PlainHttpUrl | None = Field(
        default=None,
        description="HTTP address that answers TRUE once the platform is about to preempt this "
        "host; the worker then drains within `preempted_drain_s`. On Google Cloud: "
        "`http://metadata.google.internal/computeMetadata/v1/instance/preempted`.",
    )
    max_deliveries: int = Field(
        default=4,
        ge=1,
        description="Number of workers that may die with a job before it fails. From its third "
        "delivery on the job runs alone.",
    )
    max_message_bytes: int = Field(
        default=1_048_576,
        ge=262_144,
        le=67_108_864,
        description="Longest message that is read from a queue; a longer one becomes a dead "
        "letter. The prompts of a job need up to 130 kB.",
    )
    max_dead_letter_bytes: int = Field(
        256_000_000, ge=10**6, description="Bytes of dead letters in Redis; the oldest are dropped."
    )
    newer_message_s: float = Field(
        default=3600.0,
        ge=0,
        le=31_536_000,
        description="Seconds for which a message of a newer release waits for a newer worker.",
    )
    max_retries: int = Field(
        3, ge=0, description="Retries after temporary failures; at most 2 after a `device_error`."
    )
    bulk_checkpoint_s: float = Field(
        default=30.0,
        ge=0.1,
        le=3600,
        description="Seconds between two checkpoints of a shard, and so the most work on a dataset "
        "that a preempted worker loses.",
    )
    bulk_stalled_s: float = Field(
        default=30.0,
        ge=1,
        le=86400,
        description="Seconds without progress after which one worker searches a dataset for shards "
        "that Redis lost. The time doubles with each search, up to 10 minutes.",
    )
    bulk_allow: CommaSeparated = Field(
        default=(),
        description="S3 endpoints and folders where datasets may be written, as in "
        "`https://minio:9000,/mnt/datasets`, beside AWS, Google Cloud Storage and the endpoint of "
        "`storage_url`. Default: none, or every folder if `storage_url` is one.",
    )
    watchdog_s: float = Field(
        default=300.0,
        ge=1,
        le=86400,
        description="Seconds without a denoising step after which the devices count as hung; the "
        "worker then requeues its jobs and ends. Choose more than the slowest step takes.",
    )
    quarantine_s: float = Field(
        default=600.0,
        ge=0,
        le=86400,
        description="Seconds that the devices or the storage may fail their health check before "
        "the worker ends. Until then it claims no jobs.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_model(cls, given: object) -> object:
        """Let an environment unset the model that one below it sets, as Kustomize's overlays do."""
        if isinstance(given, Mapping) and given.get("model") == "":
            return {name: value for name, value in given.items() if name != "model"}
        return given

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Load as `Settings.load` does, then check all that can be checked without a connection.

        Raises:
            ConfigurationError: it names the variable or the override that is wrong.
        """
        settings = super().load(**overrides)
        settings.signing_secrets()
        AllowList.parse(settings.callback_allow)
        LoraOption.parse_all(settings.lora)
        LoraOption.parse_job_loras(settings.job_lora)
        TextualInversionOption.parse_all(settings.textual_inversion)
        ControlNetOption.parse_all(settings.controlnet)
        if settings.models:
            check_models(settings.models, settings.model_dump(include=settings.model_fields_set))
        settings.declared_shapes()
        MeshSpec.parse(settings.mesh, settings.devices)
        return settings

    def every_model(self) -> tuple[str, ...]:
        """Return `models`, or the one model."""
        return self.models or (self.model,)

    def signing_secrets(self) -> WebhookSecrets:
        """Return the secrets that sign callbacks.

        Raises:
            ConfigurationError: one of them is wrong, or their file cannot be read.
        """
        secrets = [secret.get_secret_value() for secret in self.webhook_secrets]
        return WebhookSecrets.parse(secrets, self.webhook_tenant_secrets.get_secret_value())

    def declared_shapes(self) -> list[Shape] | None:
        """Parse `shapes`. Return None for the model's native size.

        Raises:
            ConfigurationError: one of them is not an image size.
        """
        try:
            return [Shape.parse(text) for text in self.shapes] or None
        except ValueError as error:
            raise ConfigurationError(f"IMAGEFLEET_SHAPES: {error}") from None
