"""Draw safetensors files: valid ones, such with parts replaced, and bytes that are none.

Input: a valid file. Output: the bytes of files like it. This module uses no worker.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz.values import ANY_TEXT, JSON_VALUES, NASTY_TEXT
from tests.support.latents import file_of_empty_tensors

_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "BOOL": 1}
_DTYPES: Final = (*_BYTES, "U16", "F8_E4M3", "F8_E5M2", "F4", "C64", "f32", "", "x" * 5_000)
_NUMBERS: Final = st.sampled_from([0, 1, -1, 2, 16, 2**31, 2**62, 2**63, 2**64, 10**30, 1.5, "1"])
_LENGTHS: Final = (0, 1, 8, 100, 262_145, 10**8, 10**8 + 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1)
_PICKLES: Final = (
    b"\x80\x02}q\x00.",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl",
    b"cos\nsystem\n(S'true'\ntR.",
)
"""Two of these are how files of torch begin."""
KEYS: Final = st.one_of(
    ANY_TEXT,
    NASTY_TEXT,
    st.sampled_from(["latents", "__metadata__", "clip_l", "clip_g", "emb_params", "a" * 100_000]),
)


@dataclass
class _Tensor:
    dtype: str
    shape: list[int]
    data: bytes


@dataclass
class _File:
    tensors: dict[str, _Tensor]
    metadata: dict[str, str] = field(default_factory=dict)


def _parse(data: bytes) -> _File:
    """Return what a valid file holds."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for key, entry in header.items():
        start, stop = entry["data_offsets"]
        content = data[end + start : end + stop]
        tensors[key] = _Tensor(entry["dtype"], entry["shape"], content)
    return _File(tensors, metadata)


def _layout(file: _File) -> tuple[dict[str, Any], bytes]:
    """Return the header of a file, and what follows it."""
    header: dict[str, Any] = {"__metadata__": file.metadata} if file.metadata else {}
    content = b""
    for key, each in file.tensors.items():
        offsets = [len(content), len(content) + len(each.data)]
        header[key] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": offsets}
        content += each.data
    return header, content


@cache
def _large_files() -> tuple[bytes, ...]:
    """Return files whose headers are large: of tensors, of text, of spaces."""
    text = json.dumps({"__metadata__": {"a": "x" * 9_000_000}}).encode()
    spaces = b"{" + b" " * 300_000 + b"}"
    framed = [len(each).to_bytes(8, "little") + each for each in (text, spaces)]
    return (file_of_empty_tensors(3_000), file_of_empty_tensors(120_000), *framed)


@st.composite
def _changed_tensors(draw: st.DrawFn, tensors: dict[str, _Tensor]) -> None:
    """Change a tensor so that the file stays a valid one."""
    key = draw(st.sampled_from(sorted(tensors)))
    tensor = tensors[key]
    choice = draw(st.integers(0, 6))
    if choice == 0:
        del tensors[key]
    elif choice == 1:
        tensors[draw(KEYS | st.sampled_from([f"{key}.alpha", f"a.{key}"]))] = tensors.pop(key)
    elif choice == 2:
        tensors[draw(KEYS)] = tensor
    elif choice == 3 and tensor.data:
        bad = draw(st.sampled_from([b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff", b"\xff\xff\x7f\x7f"]))
        size = len(tensor.data)
        tensors[key] = _Tensor(tensor.dtype, tensor.shape, (bad * size)[:size])
    else:
        dtype = draw(st.sampled_from([*_BYTES]))
        axes = st.sampled_from([*tensor.shape, 0, 1, 1, 3, 64])
        shape = draw(st.lists(axes, max_size=5) | st.just(tensor.shape))
        count = 1
        for side in shape:
            count *= side
        if count < 1_000_000:
            tensors[key] = _Tensor(dtype, shape, bytes(count * _BYTES[dtype]))


@st.composite
def _damaged_headers(draw: st.DrawFn, header: dict[str, Any]) -> Any:
    """Draw a header that says something wrong."""
    if not header or draw(st.integers(0, 5)) == 0:
        return draw(JSON_VALUES)
    key = draw(st.sampled_from(sorted(header)))
    part = draw(st.sampled_from(["dtype", "shape", "data_offsets", "all"]))
    if part == "all":
        return {**header, key: draw(JSON_VALUES)}
    values = {
        "dtype": st.sampled_from(_DTYPES),
        "shape": st.lists(_NUMBERS, max_size=5),
        "data_offsets": st.lists(_NUMBERS, min_size=1, max_size=3),
    }[part]
    return {**header, key: {**header[key], part: draw(values | JSON_VALUES)}}


@st.composite
def _damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw a file whose length lies, or that is cut or changed."""
    choice = draw(st.integers(0, 3))
    if choice == 0:
        return draw(st.sampled_from(_LENGTHS)).to_bytes(8, "little") + data[8:]
    if choice == 1:
        return data[: draw(st.integers(0, len(data)))]
    if choice == 2:
        return data + draw(st.binary(min_size=1, max_size=100))
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 8))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


@st.composite
def tensor_files(
    draw: st.DrawFn, bases: tuple[bytes, ...], metadata: st.SearchStrategy[dict[str, str]]
) -> bytes:
    """Draw a file like one of `bases`. `metadata` draws what may be added to its metadata."""
    choice = draw(st.integers(0, 19))
    if choice == 0:
        return draw(st.sampled_from(_PICKLES) | st.binary(max_size=300))
    if choice == 1:
        return draw(st.sampled_from(_large_files()))
    base = draw(st.sampled_from(bases))
    if choice == 2:
        return base
    file = _parse(base)
    if choice < 8:
        file.metadata = {**file.metadata, **draw(metadata)}
    for _ in range(draw(st.integers(0, 2)) if choice != 3 else 0):
        if file.tensors:
            draw(_changed_tensors(file.tensors))
    header: Any
    header, content = _layout(file)
    if choice in (9, 10, 11):
        header = draw(_damaged_headers(header))
    text = json.dumps(header, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    data = len(text).to_bytes(8, "little") + text + content
    return draw(_damaged_bytes(data)) if choice in (12, 13) else data
