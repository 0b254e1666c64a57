"""Choose the secrets that sign a callback: those of its tenant, else those of the fleet.

A tenant with secrets of its own gets no signature of the fleet's: whoever knows a secret can sign
with it, also events for somebody else's receiver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.model import check_name
from imagefleet.shared.webhooks.signature import check_secret

_FILE: Final = "@"


@dataclass(frozen=True, kw_only=True)
class WebhookSecrets:
    """The secrets of one fleet. They are in no repr."""

    fleet: Sequence[str] = field(default=(), repr=False)
    by_tenant: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    def of_tenant(self, tenant: str) -> Sequence[str]:
        """Return the secrets that sign the callbacks of a tenant; '' for jobs without one."""
        return self.by_tenant.get(tenant, self.fleet)


def parse_tenant_secrets(text: str, setting: str) -> dict[str, list[str]]:
    """Return the secrets by tenant in `text`, the value of `setting`.

    Args:
        text: entries `TENANT=whsec_…`, separated by commas or line ends; or `@` and the path of a
            file that holds them. Several entries of one tenant are several secrets.

    Raises:
        ConfigurationError: an entry is wrong, or the file cannot be read. It shows no secret.
    """
    if text.startswith(_FILE):
        text = _read_file(Path(text.removeprefix(_FILE)).expanduser(), setting)
    entries = [entry.strip() for line in text.splitlines() for entry in line.split(",")]
    secrets: dict[str, list[str]] = {}
    for number, entry in enumerate(filter(None, entries), start=1):
        where = f"{setting}: entry {number}"
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


def _read_file(path: Path, setting: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigurationError(f"{setting}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{setting}: {path} is no text in UTF-8") from None
