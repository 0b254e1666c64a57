"""A store of encoded texts in memory."""

from collections.abc import Sequence


class DictStore:
    """It keeps contents at once, as long as it exists. See `TextStore`."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def get(self, names: Sequence[str], size: int) -> dict[str, bytes]:
        found = {name: self.contents[name] for name in names if name in self.contents}
        assert all(len(content) == size for content in found.values())
        return found

    def put(self, name: str, content: bytes) -> None:
        self.contents[name] = content
