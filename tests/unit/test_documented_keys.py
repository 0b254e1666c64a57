"""docs/redis.md lists every Redis key that the code uses."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_KEY = re.compile(r'f"\{(?:self\._)?namespace\}:([a-z0-9:-]*)')


def test_the_table_lists_every_key_of_the_code() -> None:
    sources = [
        path for side in ("shared", "worker", "producer") for path in (_ROOT / side).rglob("*.py")
    ]
    found = {key for path in sources for key in _KEY.findall(path.read_text())}
    table = (_ROOT / "docs/redis.md").read_text()
    assert len(found) > 10
    assert [key for key in sorted(found) if f"`imagefleet:{key}" not in table] == []
