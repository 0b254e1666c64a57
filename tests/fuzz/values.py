"""Draw JSON values and texts of every kind: the building blocks of requests and messages."""

from typing import Any, Final

from hypothesis import strategies as st

_MAX_NESTING: Final = 300

ANY_TEXT: Final = st.text(st.characters(exclude_categories=()), max_size=40)
"""Every plane, lone surrogates and control characters."""

PLAIN_TEXT: Final = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf", "Cn", "Co"]), min_size=1, max_size=60
).map(lambda text: f"a {text}")
"""Texts that a prompt may be."""

NASTY_TEXT: Final = st.sampled_from(
    [
        "",
        " ",
        "\x00",
        "\x1b[31mred\x1b[0m\r",
        "\x7f\x80\x9b",
        "\u200b\u200d\ufeff",
        "\u202eright to left",
        "\ud800",
        "a\udfff",
        "[/bold][link=x]",
        "%s%n{0}{x}",
        "\U0010ffff",
        "../../etc/passwd",
        "x" * 5_000,
        "🟥" * 4_001,
        "null",
        "NaN",
    ]
)

NUMBERS: Final[st.SearchStrategy[Any]] = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400, 1e308]),
    st.floats(),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 5e-324]),
)


def _nested(depth: int, *, by_key: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if by_key else [value]
    return value


NESTED: Final[st.SearchStrategy[Any]] = st.builds(
    _nested, st.integers(1, _MAX_NESTING), by_key=st.booleans()
)

SCALARS: Final[st.SearchStrategy[Any]] = st.one_of(
    st.none(), st.booleans(), NUMBERS, ANY_TEXT, NASTY_TEXT
)

JSON_VALUES: Final[st.SearchStrategy[Any]] = st.one_of(
    SCALARS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
        max_leaves=8,
    ),
    NESTED,
)

QUEUE_SAFE_NAMES: Final = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,20}", fullmatch=True)
