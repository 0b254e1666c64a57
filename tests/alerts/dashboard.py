"""Ask a Prometheus every query of the Grafana dashboard, over the time of a run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.prometheus import PrometheusServer, has_number

_VARIABLES: Final = {"$fleet": ".+", "$__rate_interval": "4s"}
"""What Grafana replaces: all fleets are chosen, and four scrapes."""
_STEP_S: Final = 2.0
REASONS: Final = {
    "imagefleet_device_memory_bytes": "the fake engine has none; only the cause device-odd has",
    "imagefleet_http_": "the fleets of the causes have no gateway",
}
"""Why a metric may have no sample in a run of few causes (`--only`)."""


@dataclass(frozen=True, kw_only=True)
class PanelQuery:
    """A query of the dashboard, and how many series it showed."""

    panel: str
    expression: str
    series: int

    @property
    def reason(self) -> str:
        """Why it may be empty, if there is a reason."""
        return next((why for metric, why in REASONS.items() if metric in self.expression), "")


def read_dashboard(
    file: Path, prometheus: PrometheusServer, start: float, end: float
) -> Iterator[PanelQuery]:
    """Yield the queries of a dashboard with the number of their series between two times."""
    for panel in json.loads(file.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in _VARIABLES.items():
                expression = expression.replace(variable, value)
            found = prometheus.query_range(expression, start, end, _STEP_S)
            yield PanelQuery(
                panel=panel["title"],
                expression=target["expr"],
                series=sum(has_number(each) for each in found),
            )
