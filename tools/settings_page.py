"""Write docs/settings.md from the settings themselves: `python -m tools.settings_page`."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from imagefleet.shared.settings import ENV_PREFIX, Settings
from imagefleet.worker.settings import WorkerSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

_HEAD = """# Settings

Made by `make docs` from `shared/settings.py` and `worker/settings.py`.

Every process reads its settings from the environment. `imagefleet-worker` takes the worker's also as
flags: `IMAGEFLEET_LEASE_S=30` is `--lease-s 30`, and a flag wins. The plain command
`celery -A imagefleet.worker.app worker` reads the environment only. A wrong value is refused at start, by name;
a variable that no setting has is warned of.

S3 credentials and region come from where every AWS tool takes them (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, profiles, instance roles).
"""


def page() -> str:
    """The whole page."""
    own = [name for name in WorkerSettings.model_fields if name not in Settings.model_fields]
    return "\n".join(
        [
            _HEAD,
            "## Everybody: producers and workers\n",
            *_table(Settings, list(Settings.model_fields)),
            "",
            "## Workers\n",
            *_table(WorkerSettings, own),
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
    return "" if value in (None, ()) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
