"""The settings of a worker that say how callbacks are signed and which addresses it may reach."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.webhooks.signature import check_secrets
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets, parse_tenant_secrets
from imagefleet.worker.outbound.address_policy import AllowList


def _split_words(value: object) -> Any:
    """Return the words of a text between its commas, and any other value as it is."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_words)]
"""Several values in one variable, separated by commas."""


class CallbackSettings(Settings):
    """The settings of callbacks."""

    webhook_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
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

    @field_validator("webhook_secrets", mode="before")
    @classmethod
    def _split_secrets(cls, value: object) -> object:
        return tuple(map(SecretStr, _split_words(value))) if isinstance(value, str) else value

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Load as `Settings.load` does, then check secrets and allowed addresses.

        Raises:
            ConfigurationError: it names the variable or the override that is wrong.
        """
        settings = super().load(**overrides)
        settings.signing_secrets()
        AllowList.parse(settings.callback_allow)
        return settings

    def signing_secrets(self) -> WebhookSecrets:
        """Return the secrets that sign callbacks.

        Raises:
            ConfigurationError: one of them is wrong, or their file cannot be read.
        """
        secrets = [secret.get_secret_value() for secret in self.webhook_secrets]
        check_secrets(secrets)
        by_tenant = parse_tenant_secrets(
            self.webhook_tenant_secrets.get_secret_value(), "IMAGEFLEET_WEBHOOK_TENANT_SECRETS"
        )
        return WebhookSecrets(fleet=secrets, by_tenant=by_tenant)
