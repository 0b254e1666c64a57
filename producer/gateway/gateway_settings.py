"""The HTTP gateway reads these settings from the environment (`IMAGEFLEET_HTTP_…`)."""

import ipaddress
import re
from typing import Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets

_HEADER: Final = re.compile(r"[A-Za-z0-9-]*")
_OTHER_HEADERS: Final = frozenset({"authorization", "x-api-key", "host", "origin", "forwarded"})
_ALIASES: Final = re.compile(r"[^=,\s]+=[^=,\s]+")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class GatewaySettings(Settings):
    """A gateway process has these settings beside those of a producer."""

    http_metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="TCP port on which the gateway exports its own metrics to Prometheus; 0 "
        "chooses a free one, and the log names it. Default: none.",
    )
    http_metrics_host: str = Field(
        default="0.0.0.0",
        description="Address of this host that IMAGEFLEET_HTTP_METRICS_PORT is opened on.",
    )
    http_url: str = Field(
        default="",
        description="Address under which clients reach the gateway, as in "
        "https://images.example.org; addresses of images begin with it. Default: what the client "
        "called.",
    )
    http_require_keys: bool | None = Field(
        default=None,
        description="Whether each request needs a key of `imagefleet keys`. Default: unless the "
        "gateway listens on a loopback address; set it to true behind a reverse proxy there.",
    )
    http_wrong_keys_per_minute: int = Field(
        default=60,
        ge=1,
        le=1_000_000,
        description="Requests with a wrong key that one IP address (of IPv6: one /64) may send to "
        "this gateway in a minute; more are answered with 429. Right keys are always taken.",
    )
    http_user_header: str = Field(
        default="",
        description="Header in which a reverse proxy names the tenant of a request, as in "
        "X-Forwarded-User, once it has checked the user, for example by OpenID Connect. Default: "
        "none. Needs IMAGEFLEET_HTTP_PROXIES.",
    )
    http_proxies: str = Field(
        default="",
        description="IP addresses and networks of these proxies, joined by commas, as in "
        "10.0.0.7,10.1.0.0/16. The header of everybody else is refused.",
    )
    http_models: str = Field(
        default="",
        description="Other names of models, as in dall-e-3=sd-1.4,best=sdxl. Some clients send or "
        "list only names that they know.",
    )
    http_max_body_bytes: int = Field(
        default=100_000_000,
        ge=1_000,
        description="Largest body of a request; a larger one is answered with 413. Files have a "
        "limit of their own.",
    )
    http_max_held_bytes: int = Field(
        default=1_000_000_000,
        ge=1_000_000,
        description="Bytes of memory that this process has for large bodies and answers at the "
        "same time. A request that finds none for two seconds is answered with 503, and may be "
        "sent again. Small requests are always taken.",
    )
    http_max_file_bytes: int = Field(
        default=200_000_000,
        ge=1_000,
        description="Largest file that `POST /v1/files` takes.",
    )
    http_file_keep_s: int = Field(
        default=30 * 24 * 3_600,
        ge=3_600,
        description="Seconds after which an uploaded file, or the output of a batch, is deleted. "
        "An upload may ask for less.",
    )
    http_head_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="Seconds within which the first line and the headers of a request must have "
        "come; else the connection is closed.",
    )
    http_body_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds within which the body of a request must have come; else it is "
        "answered with 408. A file has ten times as many.",
    )
    http_send_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds within which a client must read the next 64 kB of an answer; else its "
        "connection is cut.",
    )
    http_wait_s: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Seconds that a request waits for its images. It is answered with 504 then; "
        "the job goes on.",
    )
    http_image_url_s: int = Field(
        default=3_600,
        ge=1,
        le=604_800,
        description="Seconds for which an address of an image opens without a key.",
    )
    webhook_secrets: SecretStr = Field(
        default=SecretStr(""),
        description="The secrets, `whsec_…`, with which the workers sign callbacks, joined by "
        "commas. Operators read them at `/v1/webhooks/default/secret`.",
    )
    webhook_tenant_secrets: SecretStr = Field(
        default=SecretStr(""),
        description="Those of single tenants, as the workers have them: `TENANT=whsec_…`, or `@` "
        "and the path of a file. Keys of a tenant read its own.",
    )
    http_repeat_s: float = Field(
        default=10.0,
        ge=0,
        le=3_600,
        description="Seconds after an answer within which the same request of the same key is the "
        "same job; see docs/http.md. 0: only while it is not answered.",
    )

    @field_validator("http_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
            raise ValueError("must be an http:// or https:// address without ? and #")
        return url.rstrip("/")

    @field_validator("http_models")
    @classmethod
    def _check_models(cls, text: str) -> str:
        for each in filter(None, text.split(",")):
            if not _ALIASES.fullmatch(each.strip()):
                raise ValueError("must be NAME=MODEL, several of them joined by commas")
        return text

    @field_validator("http_user_header")
    @classmethod
    def _check_header(cls, name: str) -> str:
        if not _HEADER.fullmatch(name) or name.lower() in _OTHER_HEADERS:
            raise ValueError("must be the name of a header that only the proxy sets")
        return name

    @field_validator("http_proxies")
    @classmethod
    def _check_proxies(cls, text: str) -> str:
        _parse_networks(text)
        return text

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if bool(self.http_user_header) != bool(self.proxies):
            header, proxies = "IMAGEFLEET_HTTP_USER_HEADER", "IMAGEFLEET_HTTP_PROXIES"
            raise ValueError(f"{header} and {proxies} must be given together, or neither")
        if self.http_user_header and self.http_require_keys is False:
            raise ValueError(
                "IMAGEFLEET_HTTP_REQUIRE_KEYS must not be false with IMAGEFLEET_HTTP_USER_HEADER"
            )
        return self

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Return the networks of the proxies whose header names the tenant."""
        return _parse_networks(self.http_proxies)

    def signing_secrets(self) -> WebhookSecrets:
        """Return the secrets that sign callbacks.

        Raises:
            ConfigurationError: one of them is wrong, or their file cannot be read.
        """
        secrets = [each.strip() for each in self.webhook_secrets.get_secret_value().split(",")]
        by_tenant = self.webhook_tenant_secrets.get_secret_value()
        return WebhookSecrets.parse(list(filter(None, secrets)), by_tenant)

    @property
    def model_aliases(self) -> dict[str, str]:
        """Return the models by their other names."""
        pairs = (each.strip().partition("=") for each in self.http_models.split(",") if each)
        return {name: model for name, _, model in pairs}


def _parse_networks(text: str) -> tuple[Network, ...]:
    """Return the addresses and networks in a text. Raises ValueError."""
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip())
