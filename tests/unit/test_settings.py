"""Settings come from the environment, are refused by name, hide secrets, and are all documented."""

import pytest

from shared.errors import ConfigurationError
from shared.settings import Settings
from tools.settings_page import PAGE, page
from worker.settings import WorkerSettings


def test_the_page_lists_every_setting_with_its_default() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
    assert all(f"IMAGEFLEET_{name.upper()}`" in page() for name in WorkerSettings.model_fields)


def test_the_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEFLEET_NAMESPACE", "from-env")
    monkeypatch.setenv("IMAGEFLEET_SHAPES", "512x512, 768x512")
    assert WorkerSettings.load().shapes == ("512x512", "768x512")
    assert Settings.load().namespace == "from-env"
    assert Settings.load(namespace="given").namespace == "given"
    assert Settings.load(namespace=None).namespace == "from-env"


@pytest.mark.parametrize(
    ("name", "value"),
    [("LEASE_S", "soon"), ("PER_DEVICE_BATCH", "0"), ("DTYPE", "int8"), ("NAMESPACE", "a b")],
)
def test_a_wrong_value_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"IMAGEFLEET_{name}", value)
    with pytest.raises(ConfigurationError, match=f"^IMAGEFLEET_{name}='{value}': "):
        WorkerSettings.load()
    monkeypatch.delenv(f"IMAGEFLEET_{name}")
    with pytest.raises(ConfigurationError, match=f"^{name.lower()}='{value}': "):
        WorkerSettings.load(**{name.lower(): value})


def test_secrets_do_not_show() -> None:
    settings = WorkerSettings.load(
        redis_url="redis://:hunter2@localhost", webhook_secrets="whsec_hunter2"
    )
    assert "hunter2" not in repr(settings)
    with pytest.raises(ConfigurationError) as refused:
        WorkerSettings.load(redis_url="http://:hunter2@localhost")
    assert "hunter2" not in str(refused.value)
    assert settings.webhook_secrets[0].get_secret_value() == "whsec_hunter2"
