"""Settings: environment and arguments, errors with the name, hidden secrets, the page."""

import pytest

from imagefleet.producer.connection.misspelled_variables import misspelled_variable_warnings
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.webhooks.signature import new_secret
from imagefleet.worker.commands.setting_flags import name_flag
from imagefleet.worker.settings.unknown_variables import unknown_variable_warnings
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.lifecycle import Lifecycle
from tools.settings_page import PAGE, page

_NOT_FINITE = [
    (name.upper(), value)
    for name, field in WorkerSettings.model_fields.items()
    if field.annotation is float
    for value in ("inf", "nan")
]


def test_the_page_lists_every_setting_with_its_default() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
    assert all(f"IMAGEFLEET_{name.upper()}`" in page() for name in WorkerSettings.model_fields)


def test_arguments_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEFLEET_NAMESPACE", "from-env")
    monkeypatch.setenv("IMAGEFLEET_SHAPES", "512x512, 768x512")
    assert WorkerSettings.load().shapes == ("512x512", "768x512")
    assert Settings.load().namespace == "from-env"
    assert Settings.load(namespace="given").namespace == "given"
    assert Settings.load(namespace=None).namespace == "from-env"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE_S", "soon"),
        ("PER_DEVICE_BATCH", "0"),
        ("DTYPE", "int8"),
        ("NAMESPACE", "a b"),
        *_NOT_FINITE,
    ],
)
def test_an_error_names_the_variable_or_argument_with_the_wrong_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"IMAGEFLEET_{name}", value)
    with pytest.raises(ConfigurationError, match=f"^IMAGEFLEET_{name}='{value}': "):
        WorkerSettings.load()
    monkeypatch.delenv(f"IMAGEFLEET_{name}")
    with pytest.raises(ConfigurationError, match=f"^{name.lower()}='{value}': "):
        WorkerSettings.load(**{name.lower(): value})


def test_secrets_appear_in_no_repr_and_no_error() -> None:
    secret = new_secret()
    settings = WorkerSettings.load(redis_url="redis://:hunter2@localhost", webhook_secrets=secret)
    assert "hunter2" not in repr(settings)
    assert secret not in repr(settings)
    with pytest.raises(ConfigurationError) as refused:
        WorkerSettings.load(redis_url="http://:hunter2@localhost")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        WorkerSettings.load(webhook_secrets="whsec_hunter2")
    assert "hunter2" not in str(refused.value)
    assert settings.webhook_secrets[0].get_secret_value() == secret


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"mesh": "model=2"}, "IMAGEFLEET_MESH='model=2': write data=8"),
        ({"mesh": "data=4", "devices": "3"}, "takes 4 devices, but IMAGEFLEET_DEVICES=3"),
        ({"shapes": "64by64"}, "IMAGEFLEET_SHAPES: .*64by64"),
        ({"dtype": "float8"}, "'float32' or 'bfloat16'"),
        ({"webhook_secrets": "whsec_short"}, "IMAGEFLEET_WEBHOOK_SECRETS: number 1 is not"),
        ({"callback_allow": "10.0.0.0/99"}, "IMAGEFLEET_CALLBACK_ALLOW: '10.0.0.0/99'"),
    ],
)
def test_values_that_need_no_connection_are_checked_at_load(
    overrides: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        WorkerSettings.load(**overrides)


def test_an_empty_model_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEFLEET_MODEL", "")
    assert WorkerSettings.load().model == "shapes"
    assert WorkerSettings.load(models="a b").every_model() == ("a", "b")
    monkeypatch.setenv("IMAGEFLEET_MODEL", "c")
    with pytest.raises(ConfigurationError, match="IMAGEFLEET_MODELS is set and IMAGEFLEET_MODEL"):
        WorkerSettings.load(models="a b")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"storage_url": "ftp://example.org"}, "IMAGEFLEET_STORAGE_URL='ftp://example.org'"),
        (
            {"storage_url": "s3://bucket?speed=9"},
            "IMAGEFLEET_STORAGE_URL: there is no option speed",
        ),
        ({"programs_url": "ftp://example.org"}, "IMAGEFLEET_PROGRAMS_URL='ftp://example.org'"),
        ({"programs_url": ""}, "IMAGEFLEET_PROGRAMS_URL=''"),
    ],
)
def test_an_invalid_store_address_is_refused_before_the_worker_starts(
    overrides: dict[str, str], sentence: str
) -> None:
    settings = WorkerSettings.load(**overrides)
    with pytest.raises(ConfigurationError, match=sentence):
        Lifecycle(settings)


@pytest.mark.parametrize(
    "url",
    [
        "http://metadata.google.internal/computeMetadata/v1/instance/preempted",
        "http://169.254.169.254/preempted",
        "http://localhost:8080",
    ],
)
def test_plain_http_addresses_are_accepted_for_the_preemption_notice(url: str) -> None:
    assert WorkerSettings.load(preemption_url=url).preemption_url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "metadata.google.internal",
        "https://metadata.google.internal/preempted",
        "http:///preempted",
        "http://host/preempted?wait_for_change=true",
        "http://host/preempted#now",
        "http://somebody:hunter2@host/preempted",
        "http://host:0/preempted",
        "http://host:port/preempted",
        "http://[half/preempted",
        "http://two..dots/preempted",
    ],
)
def test_other_addresses_are_refused_for_the_preemption_notice(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^preemption_url='"):
        WorkerSettings.load(preemption_url=url)


def test_a_warning_about_an_unknown_variable_names_the_nearest_setting() -> None:
    names = ["IMAGEFLEET_STORAGE_ULR", "imagefleet_model", "IMAGEFLEET_XYZZY", "HOME"]
    assert list(unknown_variable_warnings(names)) == [
        "IMAGEFLEET_STORAGE_ULR is not a setting; did you mean IMAGEFLEET_STORAGE_URL?",
        "IMAGEFLEET_XYZZY is not a setting",
    ]


def test_no_setting_of_a_worker_looks_like_a_mistyped_one_of_a_producer() -> None:
    names = [f"IMAGEFLEET_{name}" for name in _WORKERS_OWN]
    assert not list(misspelled_variable_warnings(names))
    assert not list(misspelled_variable_warnings(names, GatewaySettings))


def test_settings_that_contradict_each_other_are_named_by_their_variables() -> None:
    with pytest.raises(ConfigurationError) as refused:
        GatewaySettings.load(http_user_header="X-User")
    assert str(refused.value) == (
        "IMAGEFLEET_HTTP_USER_HEADER and IMAGEFLEET_HTTP_PROXIES must be given together, or neither"
    )


def test_a_gateway_warns_of_a_mistyped_setting_of_its_own() -> None:
    names = ["IMAGEFLEET_HTTP_MODEL", "IMAGEFLEET_HTTP_MODELS", "IMAGEFLEET_REDIS_ULR"]
    assert list(misspelled_variable_warnings(names, GatewaySettings)) == [
        "IMAGEFLEET_HTTP_MODEL is not a setting; did you mean IMAGEFLEET_HTTP_MODELS?",
        "IMAGEFLEET_REDIS_ULR is not a setting; did you mean IMAGEFLEET_REDIS_URL?",
    ]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("REDIS_ULR", "REDIS_URL"), ("NAMSPACE", "NAMESPACE"), ("STORAGE_URI", "STORAGE_URL")],
)
def test_a_producer_warns_of_a_mistyped_variable(given: str, meant: str) -> None:
    [warning] = misspelled_variable_warnings([f"IMAGEFLEET_{given}", "PATH", "REDIS_ULR"])
    assert warning == f"IMAGEFLEET_{given} is not a setting; did you mean IMAGEFLEET_{meant}?"


_WORKERS_OWN = [name.upper() for name in WorkerSettings.model_fields]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("shapes", "512", "--shapes: '512' is not an image size; write height x width in pixels"),
        ("shapes", "0x8", "--shapes: '0x8' is not an image size"),
        ("devices", "two", "--devices='two': must be a whole number"),
        ("devices", "0", "--devices='0': must be greater than or equal to 1"),
        ("lease_s", "long", "--lease-s='long': must be a number"),
        ("safety_checker", "maybe", "--safety-checker='maybe': must be true or false"),
        ("dtype", "int8", "--dtype='int8': must be 'float32' or 'bfloat16'"),
        ("keep", "soon", "--keep='soon': must be a whole number with s, m, h or d"),
    ],
)
def test_the_error_of_a_flag_names_the_flag_in_plain_words(
    name: str, value: str, sentence: str
) -> None:
    given = {name: value, "mesh": None}
    with pytest.raises(ConfigurationError) as refused:
        WorkerSettings.load(**given)
    assert name_flag(str(refused.value), given).startswith(sentence)
    assert name_flag(str(refused.value), {name: None}).startswith(f"IMAGEFLEET_{name.upper()}")


def test_an_error_names_every_setting_in_one_way() -> None:
    """By its flag, if it was given so; else by its variable."""
    sentence = "IMAGEFLEET_DEVICES=9: the host has 8; unset IMAGEFLEET_MESH, not IMAGEFLEET_XYZZY"
    assert name_flag(sentence, {}) == sentence
    assert name_flag(sentence, {"mesh": "data=9", "devices": None}) == (
        "IMAGEFLEET_DEVICES=9: the host has 8; unset --mesh, not IMAGEFLEET_XYZZY"
    )
    assert name_flag("model 'a': is not a folder", {"model": "a"}).startswith("model 'a'")


def test_lora_files_are_separated_by_commas() -> None:
    settings = WorkerSettings.load(lora="a=/loras/a.safetensors:0.8, b=/loras/b.safetensors")
    assert settings.lora == ("a=/loras/a.safetensors:0.8", "b=/loras/b.safetensors")


def test_models_are_separated_as_in_a_shell() -> None:
    settings = WorkerSettings.load(models="shapes '/my models/sd'")
    assert settings.every_model() == ("shapes", "/my models/sd")
    assert WorkerSettings.load().every_model() == ("shapes",)
