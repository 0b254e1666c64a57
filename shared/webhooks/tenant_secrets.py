"""Choose the secrets that sign a callback: those of its tenant, else those of the fleet.

A tenant with secrets of its own gets no signature of the fleet's: whoever knows a secret can sign
with it, also events for somebody else's receiver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.model import check_name
from imagefleet.shared.webhooks.signature import check_secret, check_secrets

_FILE: Final = "@"
_TENANTS_SETTING: Final = "IMAGEFLEET_WEBHOOK_TENANT_SECRETS"


@dataclass(frozen=True, kw_only=True)
class WebhookSecrets:
    """The secrets of one fleet. They are in no repr."""

    fleet: Sequence[str] = field(default=(), repr=False)
    by_tenant: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, fleet: Sequence[str], by_tenant: str) -> Self:
        """Return the secrets in two settings of a worker.

        Args:
            fleet: the value of IMAGEFLEET_WEBHOOK_SECRETS.
            by_tenant: the value of IMAGEFLEET_WEBHOOK_TENANT_SECRETS: entries `TENANT=whsec_…`,
                separated by commas or line ends; or `@` and the path of a file that holds them.
                Several entries of one tenant are several secrets.

        Raises:
            ConfigurationError: an entry is wrong, or the file cannot be read. It shows no secret.
        """
        check_secrets(fleet)
        return cls(fleet=fleet, by_tenant=_parse_tenants(by_tenant))

    def of_tenant(self, tenant: str) -> Sequence[str]:
        """Return the secrets that sign the callbacks of a tenant; '' for jobs without one."""
        return self.by_tenant.get(tenant, self.fleet)


def _parse_tenants(text: str) -> dict[str, list[str]]:
    if text.startswith(_FILE):
        text = _read_file(Path(text.removeprefix(_FILE)).expanduser())
    entries = [entry.strip() for line in text.splitlines() for entry in line.split(",")]
    secrets: dict[str, list[str]] = {}
    for number, entry in enumerate(filter(None, entries), start=1):
        where = f"{_TENANTS_SETTING}: entry {number}"
        tenant, equals, secret = entry.partition("=")
        if not equals or not secret:  # the text before the = may be a secret itself
            raise ConfigurationError(f"{where} is not TENANT=whsec_…")
        try:
            check_name(tenant)
        except ValueError as error:
            raise ConfigurationError(f"{where}: the tenant {error}") from None
        check_secret(secret, f"{where}: its secret")
        secrets.setdefault(tenant, []).append(secret)
    return secrets


def _read_file(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigurationError(
            f"{_TENANTS_SETTING}: cannot read {path}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{_TENANTS_SETTING}: {path} is no text in UTF-8") from None
