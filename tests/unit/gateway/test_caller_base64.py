"""Images in base64 and in data URLs are decoded as a whole, also if they are large."""

import base64
import random

import pytest

from imagefleet.producer.gateway.jobs.caller_images import decode_base64, decode_data_url
from imagefleet.producer.gateway.problems import Problem

_MB = 1_000_000
_FILE = random.Random(1).randbytes(3 * _MB + 1)
_TEXT = base64.b64encode(_FILE).decode()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 786_431, 786_432, 786_433, 3 * _MB, 3 * _MB + 1])
def test_what_was_encoded_is_decoded(size: int) -> None:
    text = base64.b64encode(_FILE[:size]).decode()
    assert decode_base64("image", text) == _FILE[:size]
    assert decode_data_url("image", f"data:image/png;base64,{text}") == _FILE[:size]


@pytest.mark.parametrize(
    "text",
    ["AAA", "AA=A", "QQ==QQ==", "A-A_", " AAA", "\u732b", _TEXT[:-1], _TEXT[:-4] + "==" + _TEXT],
    ids=lambda text: text[:12],
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    for decode in (
        lambda: decode_base64("image", text),
        lambda: decode_data_url("image", f"data:;base64,{text}"),
    ):
        with pytest.raises(Problem, match=r"image=.*must be base64"):
            decode()


@pytest.mark.parametrize(
    "url", ["data:", "data:image/png,AAAA", "data:;base64", "data:base64,AAAA"]
)
def test_a_data_url_without_base64_is_refused(url: str) -> None:
    with pytest.raises(Problem, match="a data: URL with base64"):
        decode_data_url("image", url)


def test_a_file_above_20_mb_is_refused_with_its_limit() -> None:
    with pytest.raises(Problem, match="must have at most 20,000,000 bytes"):
        decode_data_url("image", "data:;base64," + "A" * 30 * _MB)
