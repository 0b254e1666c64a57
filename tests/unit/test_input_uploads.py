"""What the client uploads for an image that a caller has in hand."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

from imagefleet.producer.connection.input_images import check_image

ORIENTATION = 0x0112


def test_an_image_of_pillow_keeps_the_orientation_of_its_photo() -> None:
    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # turned by 90 degrees
    photo = BytesIO()
    Image.fromarray(pixels).save(photo, format="PNG", exif=exif)
    uploaded = Image.open(BytesIO(check_image("image", Image.open(photo)).data))
    upright = np.asarray(ImageOps.exif_transpose(uploaded))
    np.testing.assert_array_equal(upright, np.rot90(pixels, -1))
