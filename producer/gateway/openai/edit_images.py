"""Read a request to edit an image: a form with files, or JSON with addresses."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from imagefleet.producer.bulk.row_cells import converted
from imagefleet.producer.gateway.jobs.caller_images import decode_data_url
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.producer.gateway.web.bodies import Form, off_loop, read_form, read_json
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS

_FILES: Final = ("image", "mask")
_ADDRESSES: Final = ("image_url", "file_id")
_FORM_OF_IMAGE: Final = 'an object with "image_url", or with "file_id"'


async def read_edit(request: Request) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Return the fields of a request, and the image and the mask as a job takes them.

    Raises Problem.
    """
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        return _edit(*_from_form(await read_form(request)))
    return await off_loop(request, edit_of_json, await read_json(request))


def edit_of_json(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Return what `read_edit` does, of a request in JSON. Raises Problem."""
    return _edit(*_from_json(dict(body)))


def _edit(
    fields: dict[str, Any], image: str | bytes, mask: str | bytes | None
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    images = {"image": image} if mask is None else {"image": image, "mask_image": mask}
    for name in images:
        if fields.get(name) is not None:
            limit = "cannot be given beside the image and the mask of OpenAI's API"
            raise wrong_field(name, fields[name], limit)
    return fields, images


def _from_form(form: Form) -> tuple[dict[str, Any], str | bytes, bytes | None]:
    for name in form.files:
        if name not in _FILES:
            raise wrong_field(name, "a file", f"must be one of {', '.join(_FILES)}")
    for name in _FILES:
        if name in form.fields:
            limit = f"must be a file of the form, as `curl -F {name}=@photo.png` sends it"
            raise wrong_field(name, form.fields[name], limit)
    fields = {
        name: converted(name, text) if name in PARAMETERS else text
        for name, text in form.fields.items()
    }
    images, masks = form.files.get("image", []), form.files.get("mask", [])
    return fields, _only("image", images), _only("mask", masks) if masks else None


def _from_json(
    fields: dict[str, Any],
) -> tuple[dict[str, Any], str | bytes, str | bytes | None]:
    images, mask = fields.pop("images", None), fields.pop("mask", None)
    if images is None and fields.get("image") is not None:
        limit = f"is called images here, a list of one image: {_FORM_OF_IMAGE}"
        raise wrong_field("image", fields["image"], limit)
    image = _only("images", images if isinstance(images, list) else [images] if images else [])
    address = _address("images", image)
    return fields, address, None if mask is None else _mask(mask)


def _only(field: str, images: list[Any]) -> Any:
    if len(images) != 1:
        raise wrong_field(field, f"{len(images)} images", "must be one image")
    return images[0]


def _address(field: str, image: object) -> str:
    """Return the address of an image, or the id of its file. Raises Problem."""
    given = image if isinstance(image, Mapping) else {}
    found = [given[name] for name in _ADDRESSES if given.get(name) is not None]
    if len(found) != 1 or not isinstance(found[0], str):
        raise wrong_field(field, image, f"must be {_FORM_OF_IMAGE}")
    return found[0]


def _mask(mask: object) -> str | bytes:
    """Return the content of a mask, or the id of its file. Raises Problem."""
    address = _address("mask", mask)
    if address.startswith(("http://", "https://")):
        raise wrong_field("mask", address, "must be a data: URL, or the id of a file in file_id")
    return decode_data_url("mask", address) if address.startswith("data:") else address
