"""Cut a page out of a list as OpenAI's API does: `after` is the last item of the page before."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from imagefleet.producer.gateway.problems import unknown


class _Item(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Item)


def page_of(items: Sequence[Item], what: str, after: str, limit: int) -> tuple[list[Item], bool]:
    """Return the items of a page, and whether more follow.

    Args:
        what: the word for an item.
        after: the id of an item; '' begins at the first one.

    Raises Problem (404) if there is no item `after`.
    """
    ids = [item.id for item in items]
    if after and after not in ids:
        raise unknown(what, after)
    start = ids.index(after) + 1 if after else 0
    return list(items[start : start + limit]), start + limit < len(items)


def list_body(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page in OpenAI's form."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
