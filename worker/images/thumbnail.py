"""A glimpse of an unfinished picture, small enough for a job's record."""

import base64
import io
from typing import Final

from PIL import Image

from imagefleet.worker.devices.work import ImageArray

LONGEST_SIDE: Final = 64
LONGEST_URL: Final = 8_192
"""Characters. Noise of 64 x 64 pixels, the worst there is, takes about 5,000."""


def preview_url(small: ImageArray) -> str:
    """`data:image/jpeg;base64,…`, at most 64 pixels a side."""
    image, file = Image.fromarray(small), io.BytesIO()
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    image.save(file, "JPEG", quality=70)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
