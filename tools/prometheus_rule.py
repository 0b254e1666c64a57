"""Write the alerts as an object for Prometheus' operator: `python -m tools.prometheus_rule`.

The rules are those of deploy/prometheus/alerts.yml, unchanged.
"""

from pathlib import Path
from textwrap import indent
from typing import Final

_DEPLOY: Final = Path(__file__).parents[1] / "deploy"
ALERTS: Final = _DEPLOY / "prometheus/alerts.yml"
RULE: Final = _DEPLOY / "kubernetes/monitoring/prometheus-rule.yaml"

_HEAD: Final = """\
# `make docs` writes this file from deploy/prometheus/alerts.yml. Add the labels by which your
# operator selects rules, as `release: kube-prometheus-stack`, in an overlay.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: imagefleet
spec:
"""


def rule_file() -> str:
    """Return the text of the file."""
    return _HEAD + indent(ALERTS.read_text(), "  ")


if __name__ == "__main__":
    RULE.write_text(rule_file())
