"""Read the input file of a batch: lines of JSON, each a request of OpenAI's Images API.

Input: the file. Output: what is wrong with its lines as requests of a batch, and the row of each
line. A line whose body is wrong is a rejected row, which leaves the others alone. This module
writes nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.rows import RejectedRow, Row, shown_value
from imagefleet.producer.gateway.batches.run_order import LineError
from imagefleet.producer.gateway.jobs.masks import transparent_part
from imagefleet.producer.gateway.openai.edit_images import edit_of_json
from imagefleet.producer.gateway.openai.images_request import ImagesRequest
from imagefleet.producer.gateway.problems import Problem, wrong_field
from imagefleet.producer.gateway.web.bodies import parse_json
from imagefleet.shared.jobs.parameter_lookups import ROW_PARAMETERS

EDITS: Final = "/v1/images/edits"
ENDPOINTS: Final = ("/v1/images/generations", EDITS)
MAX_LINES: Final = 50_000
_MAX_ERRORS: Final = 100
_MAX_ID: Final = 512
_OF_ALL: Final = ("model", "format")
"""These parameters are the same in all lines of a batch."""
_PARAMETERS: Final = frozenset({"prompt", *ROW_PARAMETERS, "seed", "height", "width", *_OF_ALL})


class _Wrong(Exception):
    """A line is no request of its batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(kw_only=True)
class BatchLines:
    """Reads the lines of one file."""

    path: Path
    endpoint: str
    aliases: Mapping[str, str]
    """It has other names of models."""
    custom_ids: list[str] = field(default_factory=list)
    """The name that the caller gave to each request, by the number of its row."""
    numbers: list[int] = field(default_factory=list)
    """It has the line of each row, counted from 1."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What the first line says of the parameters that all lines share."""

    rejected: list[LineError] = field(default_factory=list)
    """The first requests whose bodies are wrong, once `rows` has yielded them."""

    def check(self) -> tuple[LineError, ...]:
        """Read all lines once. Return what is wrong with them, at most 100 errors."""
        errors: list[LineError] = []
        known: set[str] = set()
        for number, line in self._lines():
            if len(self.custom_ids) >= MAX_LINES:
                message = f"a batch may have at most {MAX_LINES:,} requests"
                errors.append(LineError(code="too_many_requests", message=message, line=number))
                break
            error = self._check_line(number, line, known)
            if error is not None:
                errors.append(error)
            if len(errors) >= _MAX_ERRORS:
                break
        if not errors and not self.custom_ids:
            errors.append(LineError(code="empty_file", message="the file holds no request"))
        return tuple(errors)

    def rows(self) -> Iterator[Row]:
        """Yield the row of each line. Call `check` before."""
        for (number, line), custom_id in zip(self._lines(), self.custom_ids, strict=True):
            try:
                yield {**self._parameters(parse_json(line)["body"]), "custom_id": custom_id}
            except Problem as problem:
                if len(self.rejected) < _MAX_ERRORS:
                    wrong = {"message": problem.message, "param": problem.field, "line": number}
                    self.rejected.append(LineError(code="invalid_request", **wrong))
                yield RejectedRow(problem.field or "body", None, problem.message)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                if text:
                    yield number, text

    def _check_line(self, number: int, line: bytes, known: set[str]) -> LineError | None:
        try:
            request = parse_json(line)
            if not isinstance(request, dict):
                raise _Wrong("invalid_json_line", "this line must be a JSON object")
            custom_id = _custom_id(request, known)
            self._check_request(request)
            self._check_shared(request["body"])
        except _Wrong as wrong:
            return LineError(code=wrong.code, message=str(wrong), param=wrong.param, line=number)
        except (ValueError, RecursionError) as error:
            message = f"this line is not JSON: {str(error)[:200]}"
            return LineError(code="invalid_json_line", message=message, line=number)
        known.add(custom_id)
        self.custom_ids.append(custom_id)
        self.numbers.append(number)
        return None

    def _check_request(self, request: dict[str, Any]) -> None:
        if request.get("method") != "POST":
            raise _Wrong("invalid_method", "method: must be POST", "method")
        if request.get("url") != self.endpoint:
            shown = shown_value(str(request.get("url")))
            message = f"url={shown!r}: must be {self.endpoint}, the endpoint of the batch"
            raise _Wrong("mismatched_endpoint", message, "url")
        if not isinstance(request.get("body"), dict):
            raise _Wrong("invalid_body", "body: must be a JSON object", "body")

    def _check_shared(self, body: dict[str, Any]) -> None:
        """Check that a line has the model and format of the first one, which are noted."""
        model = body.get("model")
        own = {
            "model": self.aliases.get(model, model) if isinstance(model, str) else None,
            "format": body.get("output_format") or body.get("format"),
        }
        if not self.custom_ids:
            self.shared = own
        for name, value in own.items():
            if value != self.shared[name]:
                message = (
                    f"{name}={shown_value(str(value))!r}: all requests of a batch must have the "
                    f"same, and the first one has {shown_value(str(self.shared[name]))!r}"
                )
                raise _Wrong(f"mismatched_{name}", message, f"body.{name}")

    def _parameters(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of the row of a request. Raises Problem."""
        images: dict[str, str | bytes] = {}
        if self.endpoint == EDITS:
            body, images = edit_of_json(body)
            if isinstance(mask := images.get("mask_image"), str):
                raise wrong_field("mask", mask, "must be a data: URL in a batch")
            if mask is not None:
                images["mask_image"] = transparent_part(mask)
        asked = ImagesRequest.parse(body)
        if asked.response_format == "b64_json":
            limit = "must be url, or be left out: the output of a batch has addresses"
            raise wrong_field("response_format", asked.response_format, limit)
        if asked.stream:
            raise wrong_field("stream", asked.stream, "must be left out in a batch")
        given = {**asked.parameters(self.aliases), **images}
        for name in given.keys() - _PARAMETERS:
            limit = "is no parameter of a request of a batch; leave it out"
            raise wrong_field(name, given[name], limit)
        return {name: value for name, value in given.items() if name not in _OF_ALL}


def _custom_id(request: dict[str, Any], known: set[str]) -> str:
    """Return the `custom_id` of a request, which no earlier one has. Raises _Wrong."""
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _MAX_ID:
        message = f"custom_id: must be a text of 1 to {_MAX_ID} characters"
        raise _Wrong("invalid_custom_id", message, "custom_id")
    if custom_id in known:
        message = f"custom_id={shown_value(custom_id)!r}: another line has it too"
        raise _Wrong("duplicate_custom_id", message, "custom_id")
    return custom_id
