"""Settings of a worker, on top of those that both sides share. See docs/settings.md."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.settings import ENV_PREFIX, Settings
from imagefleet.shared.webhooks.signature import check_secrets
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.mesh_spec import MeshSpec
from imagefleet.worker.outbound.address_policy import AllowList

Words = Annotated[tuple[str, ...], NoDecode]
"""Several values in one variable, separated by commas."""


class WorkerSettings(Settings):
    """What a worker process needs to know before it loads anything."""

    model: str = Field(
        default="shapes",
        description="`shapes` (bundled), a diffusers folder, a Hub id, or `fake[:seconds=…]`.",
    )
    shapes: Words = Field(
        default=(),
        description="Declared picture sizes, `512x512,768x512` (height x width), the default "
        "first. All are compiled before ready. Empty: the model's native size.",
    )
    mesh: str | None = Field(
        default=None,
        description="`data=4,model=2`: 4 copies of the weights, each shared by 2 devices, for a "
        "model too large for one. Default: a copy on every device.",
    )
    devices: int | None = Field(
        default=None,
        ge=1,
        description="How many local devices to use; on CPU as many virtual ones are made. "
        "Default: all there are, 8 virtual ones on CPU.",
    )
    per_device_batch: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Pictures that a device, or the devices that share a copy of the weights, "
        "paint at a time.",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        default=None,
        description="Numbers of the networks, `float32` or `bfloat16`. Default: bfloat16 on "
        "accelerators, float32 on CPU.",
    )
    max_num_inference_steps: int = Field(
        default=100, ge=1, le=1000, description="Longest schedule a job may ask for."
    )
    safety_checker: bool = Field(
        default=True,
        description="Let the model's safety checker, if it has one, make pictures black.",
    )
    cache_dir: Path = Field(
        default=Path("~/.cache/imagefleet").expanduser(),
        description="Compiled programs. Trusted code: keep it private.",
    )
    programs_url: str | None = Field(
        default=None,
        description="Where hosts share compiled programs, in the forms of `storage_url`: what one "
        "has compiled the next loads. They are code: only workers may write there.",
    )
    programs_secret: SecretStr | None = Field(
        default=None,
        description="Seals what lies at `programs_url`, which needs it; nothing with another seal "
        "is opened.",
    )
    storage_url: str = Field(
        default="file://./out",
        description="Where pictures go: file:///folder or s3://bucket/prefix[?endpoint_url=…].",
    )
    storage_patience_s: float = Field(
        default=600.0,
        ge=0,
        le=86400,
        description="How long an upload is retried before its job fails.",
    )
    post_threads: int = Field(
        default=512,
        ge=2,
        description="Celery pool threads, made when needed: jobs waiting for devices, encoding or "
        "uploading. Three full batches should fit.",
    )
    poll_s: float = Field(
        default=0.02, gt=0, le=5, description="How often free devices ask for work."
    )
    linger_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="How long a batch that is not full waits for more jobs of its size. A full one "
        "never waits.",
    )
    lease_s: float = Field(
        default=20.0,
        ge=2,
        le=3600,
        description="A worker silent for so long has its jobs taken over.",
    )
    drain_s: float = Field(
        default=25.0,
        ge=0,
        le=3600,
        description="After SIGTERM: time for work on the devices; the rest is handed back.",
    )
    preemption_url: str | None = Field(
        default=None,
        description="Where the platform says TRUE once it is about to take this host away: then "
        "all work is handed back at once. On Google Cloud "
        "`http://metadata.google.internal/computeMetadata/v1/instance/preempted`.",
    )
    max_deliveries: int = Field(
        default=4,
        ge=1,
        description="A job whose workers died this often fails. From its third try on it "
        "runs alone.",
    )
    max_retries: int = Field(
        default=3,
        ge=0,
        description="How often a job is tried again after a failure that may pass. After a "
        "`device_error` once at most.",
    )
    bulk_checkpoint_s: float = Field(
        default=30.0,
        ge=0.1,
        le=3600,
        description="How often what is done of a dataset's shard is kept: what a preempted worker "
        "loses of it at most.",
    )
    bulk_still_s: float = Field(
        default=30.0,
        ge=1,
        le=86400,
        description="A dataset in which nothing has moved for so long is looked through, by one "
        "worker, for shards that Redis lost; again after twice as long, and so on, every 10 "
        "minutes at last.",
    )
    watchdog_s: float = Field(
        default=300.0,
        ge=1,
        le=86400,
        description="Devices that make no step for so long hang: the worker hands its jobs back "
        "and ends. Longer than your slowest step.",
    )
    quarantine_s: float = Field(
        default=600.0,
        ge=0,
        le=86400,
        description="How long devices that fail a known picture, or a store that fails a small "
        "object, may recover before the worker ends. Meanwhile it takes no work.",
    )
    webhook_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description="Standard Webhooks secrets, `whsec_…`; each signs, so old ones can be "
        "rotated out.",
    )
    callback_allow: Words = Field(
        default=(),
        description="Hosts or networks inside your network that callbacks may reach: "
        "`127.0.0.1,10.0.0.0/8`.",
    )

    @field_validator("shapes", "callback_allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return value

    @field_validator("webhook_secrets", mode="before")
    @classmethod
    def _split_secrets(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(SecretStr(word.strip()) for word in value.split(",") if word.strip())
        return value

    @field_validator("preemption_url")
    @classmethod
    def _is_plain_http(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            bare = parts._replace(query="", fragment="").geturl() == url and "@" not in parts.netloc
            if parts.scheme != "http" or host != parts.hostname or parts.port == 0 or not bare:
                raise ValueError("must be http://host/path, with nothing after the path")
        return url

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """As `Settings.load`, and with everything refused that neither Redis, a store, the model
        nor a device need be asked about, or opened for."""
        settings = super().load(**overrides)
        settings.declared_shapes()
        MeshSpec.read(settings.mesh, settings.devices)
        check_secrets([secret.get_secret_value() for secret in settings.webhook_secrets])
        AllowList.parse(settings.callback_allow)
        return settings

    def declared_shapes(self) -> list[Shape] | None:
        """`shapes`, read. None: the model's native size. Raises ConfigurationError."""
        try:
            shapes = [Shape.parse(text) for text in self.shapes]
            for text, shape in zip(self.shapes, shapes, strict=True):
                if not shape.height or not shape.width:
                    raise ValueError(f"{text!r} is not a picture size")
            return shapes or None
        except ValueError as error:
            raise ConfigurationError(
                f"IMAGEFLEET_SHAPES: {error}; write 512x512,768x512 (height x width, in pixels)"
            ) from None

    @field_validator("cache_dir")
    @classmethod
    def _expand(cls, path: Path) -> Path:
        return path.expanduser()


def misspelt(variables: Iterable[str]) -> Iterator[str]:
    """A sentence for each of `variables` that begins like a setting of ours and is none."""
    for name in variables:
        own = name.upper().removeprefix(ENV_PREFIX).lower()
        if own != name.lower() and own not in WorkerSettings.model_fields:
            nearest = get_close_matches(own, WorkerSettings.model_fields, n=1)
            hint = f"; {ENV_PREFIX}{nearest[0].upper()} is" if nearest else ""
            yield f"{name} is no setting{hint}"
