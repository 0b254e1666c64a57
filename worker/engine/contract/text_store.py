"""Define the store in which engines of several hosts keep what their text encoder makes."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class TextStore(Protocol):
    """It keeps bytes by name. It raises no errors: what it cannot return is encoded again."""

    def get(self, names: Sequence[str], size: int) -> Mapping[str, bytes]:
        """Return the whole contents that it has, by name. The devices wait meanwhile.

        Args:
            names: In the form of the keys of an `ObjectStore`.
            size: The bytes of each content. One of another size is damaged, and is not returned.
        """

    def put(self, name: str, content: bytes) -> None:
        """Keep a content, some time later or not at all. This does not wait for it."""
