"""Draw the answers of hostile image servers and callback receivers, and files of latents.

The text `URL` in an answer stands for the address that the client asked for.
"""

import gzip
import json
import struct
import zlib
from functools import cache
from io import BytesIO
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from imagefleet.worker.engine.contract.latents_file import encode_latents
from imagefleet.worker.engine.fake.fake_batch import LATENTS
from tests.fuzz.cases import AnswerCase, Part
from tests.fuzz.tensor_files import tensor_files
from tests.fuzz.values import ANY_TEXT, JSON_VALUES, NASTY_TEXT

URL: Final = b"@URL@"
STORED: Final = "stored latents"
ROLES: Final = ("image", "mask_image", "callback", "callback")

_MEGABYTE: Final = 1 << 20
_LONG_HANG_S: Final = 40.0
"""Longer than the worker waits for an image or a receiver."""
_LONG_HANGS_ONE_IN: Final = 80
"""A round with such an answer lasts a minute longer, so there are few."""
_SCANS: Final = 1_000


@cache
def _image_file(kind: str, side: int = 64) -> bytes:
    file = BytesIO()
    options = {"progressive": True} if kind == "progressive" else {}
    pixels = Image.effect_noise((side, side), 60).convert("RGB")
    pixels.save(file, "JPEG" if kind == "progressive" else kind, **options)
    return file.getvalue()


@cache
def many_scans() -> bytes:
    """Return a progressive JPEG whose last scan is repeated: small, but slow to decode."""
    data = _image_file("progressive", 256)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * _SCANS + b"\xff\xd9"


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


@cache
def _png(width: int, height: int, *, text: bool = False) -> bytes:
    """Return a PNG that claims this size, perhaps with a text that unpacks to 100 MB."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    zeros = zlib.compress(bytes(10 * _MEGABYTE), 9)
    bomb = b"x\0\0" + zlib.compress(bytes(100 * _MEGABYTE), 9)
    chunks = [(b"IHDR", header), *([(b"zTXt", bomb)] if text else []), (b"IDAT", zeros)]
    data = b"".join(_chunk(kind, content) for kind, content in [*chunks, (b"IEND", b"")])
    return b"\x89PNG\r\n\x1a\n" + data


_DIMENSIONS: Final = st.sampled_from([0, 1, 64, 4_000, 20_000, 60_000, 2**31 - 1, 2**32 - 1])


@st.composite
def _damaged_image_files(draw: st.DrawFn) -> bytes:
    data = bytearray(_image_file(draw(st.sampled_from(["PNG", "JPEG", "WEBP", "progressive"]))))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    if data:
        for _ in range(draw(st.integers(0, 8))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


_BODIES: Final[st.SearchStrategy[bytes]] = st.one_of(
    st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "progressive"]).map(_image_file),
    _damaged_image_files(),
    _damaged_image_files(),
    st.builds(_png, _DIMENSIONS, _DIMENSIONS),
    st.builds(_png, st.just(64), st.just(64), text=st.just(True)),
    st.builds(many_scans),
    st.binary(max_size=300),
    st.just(gzip.compress(bytes(20 * _MEGABYTE))),
    st.sampled_from([b"", b"<html>", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7"]),
)

_REASONS: Final = st.sampled_from(
    [b"OK", b"", b"\x1b[31mred\x1b[0m", b"\r", b"\xff\xfe", b"x" * 9_000, b"[/bold]", b"\x9b2J"]
)
_STATUSES: Final = st.sampled_from(
    [
        *b"200 200 200 200 100 101 204 206 301 302 304 307 400 401 404 408 410 413 425 429 500 503"
        b" 599 999 000 -1 abc".split(),
        b"",
    ]
)
_HEADERS: Final = st.sampled_from(
    [
        b"content-length: 10",
        b"content-length: 99999999999",
        b"content-length: -1",
        b"content-length: abc",
        b"content-length: 1\r\ncontent-length: 2",
        b"transfer-encoding: chunked",
        b"content-encoding: gzip",
        b"content-encoding: \x1b[2J",
        b"content-type: image/png",
        b"content-type: text/html\x1b[31m\x07",
        b"content-type: " + b"a" * 60_000,
        b"location: " + URL,
        b"location: http://169.254.169.254/",
        b"location: //\x1b[31m",
        b"retry-after: 1",
        b"retry-after: -5",
        b"retry-after: 999999999",
        b"retry-after: Wed, 21 Oct 2999 07:28:00 GMT",
        b"retry-after: \xb2",
        b"connection: keep-alive",
        b"set-cookie: \x00",
        b"no colon",
        b" folded: header",
        b"x: " + b"y" * 70_000,
    ]
    + [b"\r\n".join(b"h%d: v" % number for number in range(count)) for count in (90, 200, 5_000)]
)


@st.composite
def _heads(draw: st.DrawFn) -> bytes:
    version = draw(st.sampled_from([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/9.9", b"ICY", b""]))
    line = b" ".join([version, draw(_STATUSES), draw(_REASONS)])
    headers = draw(st.lists(_HEADERS, max_size=3))
    return b"\r\n".join([line, *headers]) + b"\r\n\r\n"


PLAIN_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n"


@st.composite
def _ordinary_parts(draw: st.DrawFn) -> list[Part]:
    head, body = draw(_heads() | st.just(PLAIN_HEAD)), draw(_BODIES)
    if b"chunked" in head and draw(st.booleans()):
        size = draw(st.sampled_from([b"%x" % len(body), b"ffffffffffffffff", b"-1", b"zz", b""]))
        body = size + b"\r\n" + body + b"\r\n0\r\n\r\n"
    return [Part(data=head), Part(data=body)]


_STRANGE_PARTS: Final[st.SearchStrategy[list[Part]]] = st.one_of(
    st.builds(lambda data: [Part(data=data)], st.binary(max_size=300)),
    st.just([]),
    # A slow drip: of the head, of the body.
    st.builds(
        lambda count: [Part(data=b"HTTP/1.1 200 OK\r\n"), Part(data=b"a: b\r\n", repeat=count)],
        st.just(50_000),
    ),
    st.builds(
        lambda pause_s: [
            Part(data=PLAIN_HEAD + _image_file("PNG")[:40]),
            Part(data=b"\0", repeat=int(4 / pause_s), pause_s=pause_s),
        ],
        st.sampled_from([0.02, 0.5]),
    ),
    st.just([Part(data=b"H", repeat=8, pause_s=0.5)]),
    # A huge body, and provisional answers without end.
    st.just([Part(data=PLAIN_HEAD), Part(data=bytes(_MEGABYTE), repeat=64)]),
    st.just([Part(data=b"HTTP/1.1 100 Continue\r\n\r\n", repeat=20_000)]),
)


@st.composite
def answers(draw: st.DrawFn) -> AnswerCase:
    """Draw the answer of an image server or a callback receiver, without an id."""
    hangs = [0.0] * 30 + [0.5] * 6 + [2.0] * 3
    long_hang = draw(st.integers(0, _LONG_HANGS_ONE_IN - 1)) == 7
    return AnswerCase(
        id="",
        role=draw(st.sampled_from(ROLES)),
        parts=draw(_ordinary_parts() | _ordinary_parts() | _ordinary_parts() | _STRANGE_PARTS),
        hang_s=_LONG_HANG_S if long_hang else draw(st.sampled_from(hangs)),
        reset=draw(st.integers(0, 9)) == 0,
    )


@cache
def _valid_latents(scaling: str = LATENTS.scaling) -> bytes:
    values = np.random.default_rng(1).standard_normal((8, 8, LATENTS.channels), np.float32)
    return encode_latents(values, scaling, {"prompt": "a red star"})


@st.composite
def _metadata_of_latents(draw: st.DrawFn) -> dict[str, str]:
    scaling = draw(st.just(LATENTS.scaling) | JSON_VALUES | NASTY_TEXT)
    text = json.dumps({"latent_scaling": scaling, draw(ANY_TEXT): draw(JSON_VALUES)})
    texts = st.sampled_from(["[" * 100_000, "{", "", '{"latent_scaling":' * 5_000])
    return {"imagefleet": draw(st.just(text) | texts | NASTY_TEXT), draw(ANY_TEXT): "x"}


@st.composite
def latents_answers(draw: st.DrawFn) -> AnswerCase:
    """Draw a file of latents, of the store or of a server, without an id."""
    data = draw(tensor_files((_valid_latents(), _valid_latents("x")), _metadata_of_latents()))
    if draw(st.booleans()):
        return AnswerCase(id="", role=STORED, parts=[Part(data=data)])
    plain = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(data)
    head = draw(st.just(plain) | st.just(plain) | st.just(PLAIN_HEAD) | _heads())
    return AnswerCase(id="", role="latents", parts=[Part(data=head), Part(data=data)])


def parameters_for(case: AnswerCase, url: str) -> dict[str, Any]:
    """Return the parameters of a job that gets the answer of `case`, which is at `url`."""
    if case.role in ("latents", STORED):
        return {"prompt": "a red star", "latents": url, "denoising_start": 0.5}
    parameters = {
        "prompt": "a red star",
        "callback_url" if case.role == "callback" else "image": url,
    }
    return {**parameters, "mask_image": url} if case.role == "mask_image" else parameters
