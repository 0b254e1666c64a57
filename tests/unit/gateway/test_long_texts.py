"""Long texts are cut out of JSON and put in again, and nothing else changes."""

import json
from typing import Any

import pytest

from imagefleet.producer.gateway.web.bodies import parse_json
from imagefleet.producer.gateway.web.long_texts import LONG, cut_long_texts, digest_of, put_in

_IMAGE = "iVBORw0KGgo+/" * (LONG // 10)
_OTHER = "/9j/4AAQSkZJRg" * (LONG // 10)


def _cut(value: Any, **how: Any) -> tuple[bytes, dict[str, str]]:
    return cut_long_texts(json.dumps(value, **how).encode())


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        ({"image": _IMAGE, "mask": "data:image/png;base64," + _OTHER, "prompt": "a"}, 2),
        ({"init_images": [_IMAGE, _IMAGE, [{"deep": _OTHER}]], "n": 3}, 3),
        ({"prompt": 'a \\ quote " and "another" \\\\', "image": _IMAGE}, 1),
        ({"prompt": "\u732b \U0001f408", "image": _IMAGE}, 1),
        (_IMAGE, 1),
        # These texts are long, and not plain:
        ({"a": "\n" + _IMAGE, "b": _IMAGE + "\t", "c": _IMAGE + "\u732b", "d": _IMAGE + "\x7f"}, 0),
        ({"a": ' "' + _IMAGE + '" ', "b": ", [" + _IMAGE}, 0),
        ({"numbers": list(range(30_000)), "none": "", "a": "b"}, 0),
        ({"a": "x" * (LONG - 1)}, 0),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("how", [{}, {"ensure_ascii": False}, {"indent": 3}])
def test_json_is_the_same_after_its_long_texts_were_put_in(
    value: Any, cut: int, how: dict[str, Any]
) -> None:
    short, texts = _cut(value, **how)
    assert len(texts) == cut
    assert put_in(parse_json(short), texts) == value


@pytest.mark.parametrize(
    "content",
    ['{"a": "%s"b"}', '{"a"%s"b": "c"}', '"%s', '{"a": %s}', '["b" "%s"]', '"a"%s""'],
)
def test_what_is_no_json_stays_none(content: str) -> None:
    short, texts = cut_long_texts((content % _IMAGE).encode())
    with pytest.raises(ValueError, match=r"line 1"):
        put_in(parse_json(short), texts)


def test_a_long_name_is_refused() -> None:
    short, texts = _cut({_IMAGE: 1})
    with pytest.raises(ValueError, match="a name in it has more than 65,536 letters"):
        put_in(parse_json(short), texts)


def test_no_text_is_cut_out_behind_very_many_quotes() -> None:
    value = {"a": ["b"] * 60_000, "image": _IMAGE}
    short, texts = _cut(value)
    assert (json.loads(short), texts) == (value, {})


def test_deep_json_is_refused_with_its_limit() -> None:
    deep = b"[" * 100 + b"1" + b"]" * 100
    assert parse_json(deep)
    with pytest.raises(ValueError, match="more than 100 deep"):
        parse_json(b"[" + deep + b"]")


def test_a_digest_is_that_of_the_value() -> None:
    value = {"image": _IMAGE, "list": [1, {"a": _OTHER}], "prompt": "a"}
    assert digest_of(value) == digest_of(dict(reversed(value.items())))
    changed: list[Any] = [
        {**value, "image": _IMAGE[:-1] + "x"},
        {**value, "list": [1, {"a": _IMAGE}]},
        {**value, "prompt": "b"},
        {**value, "n": None},
    ]
    assert len({digest_of(each) for each in [value, *changed]}) == len(changed) + 1
