"""Secrets of tenants: read from a setting or a file, and shown nowhere."""

from pathlib import Path

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.webhooks.signature import new_secret
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.settings.worker_settings import WorkerSettings

FLEET, GOLD, OLD_GOLD, TIN = (new_secret() for _ in range(4))


def _load(tenant_secrets: str) -> WebhookSecrets:
    settings = WorkerSettings.load(webhook_secrets=FLEET, webhook_tenant_secrets=tenant_secrets)
    assert GOLD not in repr(settings)
    assert GOLD not in repr(settings.signing_secrets())
    return settings.signing_secrets()


@pytest.mark.parametrize("separator", [",", "\n", " ,\n"])
def test_each_tenant_signs_with_its_own_secrets_and_others_with_those_of_the_fleet(
    separator: str, tmp_path: Path
) -> None:
    text = separator.join([f"gold={GOLD}", f"gold={OLD_GOLD}", f"a/b+c={TIN}", ""])
    (tmp_path / "secrets").write_text(text)
    for value in (text, f"@{tmp_path}/secrets"):
        secrets = _load(value)
        assert list(secrets.of_tenant("gold")) == [GOLD, OLD_GOLD]
        assert list(secrets.of_tenant("a/b+c")) == [TIN]
        assert list(secrets.of_tenant("iron")) == list(secrets.of_tenant("")) == [FLEET]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"gold={GOLD},{TIN}", r"entry 2 is not TENANT=whsec_…"),
        ("gold", r"entry 1 is not TENANT=whsec_…"),
        (f"={GOLD}", r"entry 1: the tenant must be 1 to 128 letters"),
        (f"gold={GOLD}x", r"entry 1: its secret is not whsec_ followed by the base64"),
        ("gold=", r"entry 1 is not TENANT=whsec_…"),
        ("@/nowhere/secrets", r"cannot read /nowhere/secrets: No such file or directory"),
    ],
    ids=["second", "no-equals", "no-tenant", "bad-secret", "no-secret", "no-file"],
)
def test_a_wrong_entry_is_named_without_the_secret(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        _load(text)
    assert str(refused.value).startswith("IMAGEFLEET_WEBHOOK_TENANT_SECRETS: ")
    assert GOLD not in str(refused.value)
    assert TIN not in str(refused.value)
