"""Producers and workers share these settings, from the environment (`IMAGEFLEET_…`) or flags.

Nothing is read at import. The entry point of a process creates one `Settings` and passes it on.
"""

import re
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client import address, cluster, sentinel
from imagefleet.shared.redis_client.lanes import DEFAULT_LANES, MAX_LANES
from imagefleet.shared.text.printable import mask_url

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

ENV_PREFIX = "IMAGEFLEET_"

_SENTENCES: Final = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
}


class Settings(BaseSettings):
    """The settings of a producer. A worker adds its own to them."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    redis_url: SecretStr = Field(
        default=SecretStr("redis://localhost:6379/0"),
        description="Redis: queues, job records and outbox. redis://, rediss://, unix://, "
        "sentinel://host:26379,host2:26379/service, or a cluster: "
        "redis+cluster://host:6379,host2:6379 or rediss+cluster://.",
    )
    namespace: str = Field(
        default="imagefleet",
        description="Prefix of every queue and key, so that fleets can share one Redis.",
    )
    lanes: int = Field(
        default=DEFAULT_LANES,
        ge=1,
        le=MAX_LANES,
        description="In a cluster: parts into which the fleet is cut, each on one master; twice as "
        "many as the masters that it will ever need. It cannot be changed later.",
    )
    retention_s: int = Field(
        default=7 * 24 * 3600,
        ge=60,
        description="Seconds that a finished job's record is kept. Its images stay.",
    )
    traces: bool = Field(
        default=False,
        description="Make OpenTelemetry spans of jobs; needs the extra `traces`. Workers send them "
        "by OTLP over HTTP, as `OTEL_EXPORTER_OTLP_ENDPOINT` and its like say.",
    )
    storage_url: str = Field(
        default="",
        description="For producers: the fleet's store as this host reaches it, to read images and "
        "to upload those that jobs start from. Default: the address that the workers use.",
    )

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, namespace: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", namespace):
            raise ValueError("must be 1 to 32 letters, digits, '_' or '-'")
        return namespace

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        _check_quoting(text)
        if text.startswith(sentinel.SCHEME):
            sentinel.Address.parse(text)
            return url
        if text.startswith(cluster.SCHEMES):
            cluster.Address.parse(text)
            return url
        if not text.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError(
                "must begin with redis://, rediss://, unix://, sentinel:// or redis+cluster://; "
                "other brokers cannot hold a fleet, because a claim is a script of Redis "
                "(docs/scale.md)"
            )
        if not text.startswith("unix://"):
            parts = urlsplit(text)
            if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
                raise ValueError("must end in the number of a database, as in redis://host:6379/0")
            try:
                port = parts.port
            except ValueError:  # its message may quote a part of the password
                raise ValueError(
                    "must have a number as its port; in a password write %3F for a ?"
                ) from None
            if port == 0:
                raise ValueError("must not name port 0")
        address.parse_options(text)
        return url

    @property
    def in_cluster(self) -> bool:
        """Whether Redis is a cluster, so that the fleet has lanes."""
        return self.redis_url.get_secret_value().startswith(cluster.SCHEMES)

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Return the environment's settings, changed by those `overrides` that are not None.

        Raises:
            ConfigurationError: a setting is wrong. Names its variable or override, and its value
                unless that is secret.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if not first["loc"]:  # of several settings, which the sentence names
                raise ConfigurationError(_sentence(first)) from None
            name = str(first["loc"][0])
            where = name if name in given else f"{ENV_PREFIX}{name.upper()}"
            if name in cls.model_fields and "Secret" not in str(cls.model_fields[name].annotation):
                value = first["input"]
                where += f"={(mask_url(value) if isinstance(value, str) else value)!r}"
            raise ConfigurationError(f"{where}: {_sentence(first)}") from None


def _sentence(error: "ErrorDetails") -> str:
    """Return what is wrong with a value in plain words, and without the value."""
    plain = _SENTENCES.get(error["type"].removesuffix("_parsing").removesuffix("_type"))
    text = error["msg"].removeprefix("Value error, ")
    return plain or text.replace("Input should", "must")


def _check_quoting(url: str) -> None:
    """Raise ValueError if a password may hold a character that splits the address.

    Parsers would take the rest of the password for a host, a port or an option, and show it.
    """
    rest = url.partition("://")[2]
    try:
        urlsplit(url)
        is_split = "#" in rest or "@" in rest.partition("?")[2]
    except ValueError:  # brackets; its message quotes what is between them
        is_split = True
    if is_split:
        raise ValueError(
            "must be percent-encoded; in a password write %23 for #, %3F for ?, %40 for @, "
            "%2F for /, %5B for [ and %5D for ]"
        )
