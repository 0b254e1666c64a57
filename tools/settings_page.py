"""Write docs/settings.md from the settings classes: `python -m tools.settings_page`."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.settings.settings import ENV_PREFIX, Settings
from imagefleet.worker.settings.worker_settings import WorkerSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

_HEAD = """# Settings

`make docs` writes this page from `shared/settings/settings.py`, `worker/settings/worker_settings.py` and
`producer/gateway/gateway_settings.py`.

Every process reads its settings from environment variables. `imagefleet-worker` also takes flags:
`--lease-s 30` is `IMAGEFLEET_LEASE_S=30`, and a flag overrides its variable. The command
`celery -A imagefleet.worker.app worker` reads the variables only. A process with a wrong value does not
start, and the error names it: by its variable, or by its flag if it was given so. A worker warns about
variables that begin with `IMAGEFLEET_` and are not settings.

S3 credentials and region are read as by every AWS tool: from `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, profiles or instance roles. Those of Google Cloud Storage are the
application-default credentials.
"""


def page() -> str:
    """Return the text of the page."""
    own = [
        name
        for name, field in WorkerSettings.model_fields.items()
        if name not in Settings.model_fields
        or field.description != Settings.model_fields[name].description
    ]
    gateway = [name for name in GatewaySettings.model_fields if name not in Settings.model_fields]
    return "\n".join(
        [
            _HEAD,
            "## Producers and workers\n",
            *_table(Settings, list(Settings.model_fields)),
            "",
            "## Workers\n",
            *_table(WorkerSettings, own),
            "",
            "## HTTP gateways\n",
            *_table(GatewaySettings, gateway),
            "",
        ]
    )


def _table(model: type[BaseModel], names: list[str]) -> list[str]:
    rows = [
        f"| `{ENV_PREFIX}{name.upper()}` | {_default(model.model_fields[name])} "
        f"| {model.model_fields[name].description} |"
        for name in names
    ]
    return ["| variable | default | meaning |", "|---|---|---|", *rows]


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=False)
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, Path):
        value = f"~/{value.relative_to(Path.home())}"
    return "" if value in (None, (), "") else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
