"""Encode the preview of a running job as a data URL, small enough for the record of the job."""

import base64
import io
from typing import Final

from PIL import Image

from imagefleet.worker.engine.contract.interface import ImageArray

MAX_SIDE: Final = 64
"""Pixels."""
MAX_URL_LENGTH: Final = 8_192
"""Characters. Noise of 64 x 64 pixels, the worst case, takes about 5,000."""


def preview_url(preview: ImageArray) -> str:
    """Return `data:image/jpeg;base64,…`: `preview`, scaled to at most `MAX_SIDE` pixels a side."""
    image, file = Image.fromarray(preview), io.BytesIO()
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    image.save(file, "JPEG", quality=70)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
