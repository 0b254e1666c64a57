"""Read the image and the mask that a request of img2img starts from."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Self

from imagefleet.producer.gateway.jobs.caller_images import decode_base64, decode_data_url
from imagefleet.producer.gateway.jobs.masks import white_part
from imagefleet.producer.gateway.problems import wrong_field

_ORIGINAL: Final = 1
"""The value of `inpainting_fill` that starts from what is below the mask, as diffusers does."""
_OF_MASKS: Final = (
    *("mask_blur", "mask_blur_x", "mask_blur_y", "mask_round", "inpaint_full_res_padding"),
    *("inpainting_mask_invert", "inpainting_fill", "inpaint_full_res"),
)


@dataclass(frozen=True, kw_only=True)
class StartImages:
    """A job starts from these images."""

    image: str
    """It is base64, a `data:` URL or an address, as `mask` is. `parameters` decodes them."""
    mask: str | None
    inverts_mask: bool

    @classmethod
    def take(cls, fields: MutableMapping[str, Any]) -> Self:
        """Return the images of a request, and remove their fields from it. Raises Problem."""
        images, mask = fields.pop("init_images", None), fields.pop("mask", None)
        details = {name: fields.pop(name, None) for name in _OF_MASKS}
        if not isinstance(images, list) or len(images) != 1:
            count = len(images) if isinstance(images, list) else images
            raise wrong_field("init_images", count, "must be a list of one image in base64")
        image = _text("init_images", images[0])
        if not mask:
            return cls(image=image, mask=None, inverts_mask=False)
        text = _text("mask", mask)
        _check_details(details)
        return cls(image=image, mask=text, inverts_mask=details["inpainting_mask_invert"] == 1)

    def parameters(self) -> dict[str, str | bytes]:
        """Return the parameters of the job. It decodes base64 and the mask. Raises Problem."""
        image = _content("init_images", self.image)
        if self.mask is None:
            return {"image": image}
        if not isinstance(content := _content("mask", self.mask), bytes):
            raise wrong_field("mask", self.mask, "must be an image in base64")
        return {"image": image, "mask_image": white_part(content, invert=self.inverts_mask)}


def _text(field: str, text: object) -> str:
    if not isinstance(text, str):
        raise wrong_field(field, text, "must be a text in base64")
    return text


def _content(field: str, text: str) -> str | bytes:
    """Return the file that the web UI would read; an address as it is."""
    if text.startswith(("http://", "https://")):
        return text
    return decode_data_url(field, text) if text.startswith("data:") else decode_base64(field, text)


def _check_details(details: dict[str, Any]) -> None:
    invert, fill = details["inpainting_mask_invert"], details["inpainting_fill"]
    if invert not in (None, 0, 1):
        raise wrong_field("inpainting_mask_invert", invert, "must be 0 or 1")
    if fill not in (None, _ORIGINAL):
        limit = f"must be {_ORIGINAL}: a job starts from what is below the mask"
        raise wrong_field("inpainting_fill", fill, limit)
    if details["inpaint_full_res"] not in (None, 0):
        limit = "must be false: the whole image is denoised in its own resolution"
        raise wrong_field("inpaint_full_res", details["inpaint_full_res"], limit)
