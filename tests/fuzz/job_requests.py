"""Draw the parameters of jobs: valid ones, and valid ones with some fields replaced."""

from typing import Any, Final

from hypothesis import strategies as st

from imagefleet import JobRequest
from imagefleet.shared.jobs.parameter_types import MAX_KEEP_S, MAX_TTL_S
from tests.fuzz.values import (
    ANY_TEXT,
    JSON_VALUES,
    NASTY_TEXT,
    NESTED,
    NUMBERS,
    PLAIN_TEXT,
    QUEUE_SAFE_NAMES,
)

_ADDRESSES: Final = (
    "http://10.0.0.1/a",
    "http://169.254.169.254/computeMetadata/v1/",
    "http://[::1]:1/",
    "http://[::ffff:127.0.0.1]:1/",
    "http://127.0.0.1:1/refused",
    "http://0x7f000001:1/",
    "http://user:secret@127.0.0.1:1/",
    "https://127.0.0.1:1/",
    "http://127.0.0.1:99999/",
    "http://[::/",
    "http://a..b/",
    "http://" + "a" * 300 + "/",
    "ftp://127.0.0.1/",
    "http://127.0.0.1:1/\r\nx: y",
    "http://xn--/",
)
_KEYS: Final = (
    "missing.png",
    "a/../b.png",
    "/etc/passwd",
    "file:///etc/passwd",
    "s3://bucket/key",
    ".",
    "a//b",
    "a/",
    "jobs",
    "%2e%2e/x",
    "~root/x",
    "x" * 2_048,
)

_PLAIN_VALUES: Final[st.SearchStrategy[Any]] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    PLAIN_TEXT,
)
"""What JSON can hold."""

_PREDICTIONS: Final = tuple(
    f"http://127.0.0.1/v1/predictions/{name}#key={'0' * 64}&valid={valid}"
    for name in ("a", "a b", "")
    for valid in (1, 0, "x")
)
_BRACKETS: Final = st.text("a ()[]:\\\\.-+0123456789", min_size=1, max_size=200)
"""Prompts in which nearly everything has a meaning with `prompt_weighting`."""

_VALID: Final[dict[str, st.SearchStrategy[Any]]] = {
    "negative_prompt": PLAIN_TEXT,
    "num_inference_steps": st.integers(1, 8),
    "guidance_scale": st.floats(0, 50),
    "clip_skip": st.none() | st.integers(1, 12),
    "guidance_rescale": st.none() | st.floats(0, 1),
    "cfg_normalization": st.none() | st.booleans() | st.floats(0, 50),
    "cfg_truncation": st.none() | st.floats(0, 1),
    "true_cfg_scale": st.none() | st.floats(1, 50),
    "prompt_weighting": st.booleans(),
    "num_images_per_prompt": st.sampled_from([1, 1, 1, 1, 2, 3, 9]),
    "image_index": st.sampled_from([None, None, None, 0]),
    "seed": st.integers(0, 2**32 - 1),
    "preview": st.booleans(),
    "scheduler": st.just("ddim"),
    "model": st.just("fake"),
    "format": st.sampled_from(["png", "webp", "jpeg"]),
    "priority": st.integers(0, 9),
    "tenant": st.sampled_from(["gold", "tin"]) | QUEUE_SAFE_NAMES,
    "callback_events": st.lists(
        st.sampled_from(["started", "progress", "succeeded", "failed", "cancelled"]), max_size=5
    ),
    "ttl": st.sampled_from([1e-6, 60]) | st.floats(1e-6, MAX_TTL_S),
    "keep": st.sampled_from(["1s", "45m", "12h", "30d", "3650d", 1, "1e3", " 7 "])
    | st.floats(1e-6, MAX_KEEP_S),
    "metadata": st.dictionaries(PLAIN_TEXT, _PLAIN_VALUES | st.lists(_PLAIN_VALUES), max_size=3),
}

_OTHER: Final[dict[str, st.SearchStrategy[Any]]] = {
    "image": st.sampled_from([*_ADDRESSES, *_KEYS]),
    "mask_image": st.sampled_from([*_ADDRESSES, *_KEYS]),
    "controlnet": QUEUE_SAFE_NAMES | NASTY_TEXT,
    "control_image": st.sampled_from([*_ADDRESSES, *_KEYS]),
    "controlnet_conditioning_scale": st.floats(-0.1, 10.1) | NUMBERS,
    "control_guidance_start": st.floats(-0.1, 1.1) | NUMBERS,
    "control_guidance_end": st.floats(-0.1, 1.1) | NUMBERS,
    "strength": st.floats(-0.1, 1.1) | NUMBERS,
    "latents": st.sampled_from([*_ADDRESSES, *_KEYS]),
    "denoising_start": st.floats(-0.1, 1.1) | NUMBERS,
    "denoising_end": st.floats(-0.1, 1.1) | NUMBERS,
    "callback_url": st.sampled_from(_ADDRESSES),
    "callback_prediction": st.sampled_from([*_ADDRESSES, *_PREDICTIONS]),
    "height": st.sampled_from([64, 8, 65, 0, -64, 2**31, 64.0, "64"]),
    "width": st.sampled_from([64, 8, 65, 0, -64, 2**31, 64.0, "64"]),
    "num_images_per_prompt": st.sampled_from([64, 65, 0]),
    "image_index": st.sampled_from([0, 1, 2, 8, 63, 64, -1, True, 1.0, "1"]) | NUMBERS,
    "num_inference_steps": st.sampled_from([100, 101, 1_001, 0]),
    "guidance_rescale": st.sampled_from([1.01, -0.1, "0.7", True]) | NUMBERS,
    "cfg_normalization": st.sampled_from([50.1, -0.1, "1", "true"]) | NUMBERS,
    "cfg_truncation": st.sampled_from([1.01, -0.1, "0.7", True]) | NUMBERS,
    "true_cfg_scale": st.sampled_from([0.9, 50.1, "2", True]) | NUMBERS,
    "clip_skip": st.sampled_from([13, 64, 65, 0, -1, True, 1.0, "1"]) | NUMBERS,
    "prompt": ANY_TEXT | NASTY_TEXT | _BRACKETS,
    "negative_prompt": ANY_TEXT | NASTY_TEXT | _BRACKETS,
    "id": ANY_TEXT | NASTY_TEXT | JSON_VALUES,
    "tenant": ANY_TEXT | NASTY_TEXT,
    "model": QUEUE_SAFE_NAMES | NASTY_TEXT,
    "ttl": NUMBERS | NASTY_TEXT,
    "keep": NUMBERS
    | NASTY_TEXT
    | st.sampled_from(["0d", "-1d", "1.5d", "30 d", "30D", "٣d", "999999999d", "9999999999s"]),
    "metadata": JSON_VALUES | NESTED | st.dictionaries(ANY_TEXT | NASTY_TEXT, JSON_VALUES),
}

_FIELDS: Final = st.sampled_from([*JobRequest.model_fields, "id"]) | ANY_TEXT

VALID_PARAMETERS: Final = st.fixed_dictionaries({"prompt": PLAIN_TEXT}, optional=_VALID)


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the parameters of one job; about half of them are valid."""
    drawn: dict[str, Any] = draw(VALID_PARAMETERS)
    if draw(st.booleans()):
        for name in draw(st.lists(st.sampled_from([*_OTHER]), min_size=1, max_size=2)):
            drawn[name] = draw(_OTHER[name])
    if draw(st.integers(0, 3)) == 0:
        for name in draw(st.lists(_FIELDS, min_size=1, max_size=3)):
            drawn[name] = draw(JSON_VALUES)
    return drawn
