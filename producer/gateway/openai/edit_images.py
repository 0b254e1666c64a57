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
    fields: dict[str, Any], image: str | bytes, mask: bytes | None
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
    fields = {
        name: converted(name, text) if name in PARAMETERS else text
        for name, text in form.fields.items()
    }
    images, masks = form.files.get("image", []), form.files.get("mask", [])
    return fields, _only("image", images), _only("mask", masks) if masks else None


def _from_json(fields: dict[str, Any]) -> tuple[dict[str, Any], str | bytes, bytes | None]:
    images, mask = fields.pop("images", []), fields.pop("mask", None)
    image = _only("images", images if isinstance(images, list) else [images])
    address = _address("images", image)
    if mask is None:
        return fields, address, None
    return fields, address, decode_data_url("mask", _address("mask", mask))


def _only(field: str, images: list[Any]) -> Any:
    if len(images) != 1:
        raise wrong_field(field, f"{len(images)} images", "must be one image")
    return images[0]


def _address(field: str, image: object) -> str:
    address = image.get("image_url") if isinstance(image, Mapping) else None
    if not isinstance(address, str):
        raise wrong_field(field, image, 'must be an object with "image_url"')
    return address
