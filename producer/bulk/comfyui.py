"""Read the workflows of ComfyUI, in the format of its API, as far as they are one KSampler.

Input: a workflow: nodes by id, each with `class_type` and `inputs`. Output: a row. A workflow that
does more is rejected by the name of the node.

Source: https://github.com/comfyanonymous/ComfyUI, script_examples/basic_api_example.py, nodes.py.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from imagefleet.producer.bulk.foreign_rows import SCHEDULE, translated
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.bulk.rows import RejectedRow, Row, shown_value
from imagefleet.producer.bulk.text_files import MAX_LINE_CHARACTERS, FileOptions, open_text
from imagefleet.shared.errors import InvalidRequest

_SAMPLER: Final = "KSampler"
_LATENTS: Final = frozenset({"EmptyLatentImage", "EmptySD3LatentImage"})
_TEXT_ENCODERS: Final = frozenset({"CLIPTextEncode"})
_LORAS: Final = frozenset({"LoraLoader", "LoraLoaderModelOnly"})
_CHECKPOINTS: Final = frozenset({"CheckpointLoaderSimple", "CheckpointLoader", "UNETLoader"})
_HARMLESS: Final = (
    frozenset({_SAMPLER, "CLIPSetLastLayer", "VAEDecode", "VAEDecodeTiled", "SaveImage"})
    | {"PreviewImage", "CLIPLoader", "DualCLIPLoader", "Reroute", "Note", "MarkdownNote"}
    | {"PrimitiveNode", "PrimitiveString", "PrimitiveStringMultiline", "PrimitiveInt"}
    | {"PrimitiveFloat"}
    | _LATENTS
    | _TEXT_ENCODERS
    | _LORAS
    | _CHECKPOINTS
)
"""Nodes of these classes are read, or change no image."""
_TEXT_INPUTS: Final = ("text", "value", "string", "prompt")
_MAX_LINKS: Final = 100
"""Nodes in one chain; more of them are a circle."""


class _Rejected(Exception):
    """Ends the reading of a workflow."""


def looks_like_workflow(text: str) -> bool:
    """Return whether the beginning of a JSON object is that of a workflow."""
    return '"class_type"' in text or ('"nodes"' in text and '"last_node_id"' in text)


def read_comfyui(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the one row of a workflow file.

    Raises:
        InvalidRequest: the file is not JSON.
    """
    with open_text(path, options) as file:
        text = file.read(MAX_LINE_CHARACTERS + 1)
    try:
        if len(text) > MAX_LINE_CHARACTERS:
            raise ValueError(f"it has more than {MAX_LINE_CHARACTERS:,} characters")
        workflow = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("input", str(path), f"is no workflow of ComfyUI: {error}") from None
    yield workflow_row(workflow, options.notes)


def workflow_row(workflow: Any, notes: Notes) -> Row:
    """Return the row of a workflow, or why there is none."""
    try:
        if isinstance(workflow, Mapping) and isinstance(workflow.get("prompt"), Mapping):
            workflow = workflow["prompt"]  # as it is posted to the API
        return _Workflow(workflow).row(notes)
    except _Rejected as error:
        return RejectedRow("workflow", None, str(error))
    except (TypeError, ValueError) as error:  # of a value that is no number
        return RejectedRow("workflow", None, f"has a value of another kind: {error}")


class _Workflow:
    """Holds the nodes of a workflow, and follows the links between them."""

    def __init__(self, workflow: Any) -> None:
        if not isinstance(workflow, Mapping):
            raise _Rejected("is not a JSON object of nodes")
        if "nodes" in workflow and "links" in workflow:
            raise _Rejected("is in the format of the editor; save it with Export (API)")
        self._nodes = {
            str(key): node
            for key, node in workflow.items()
            if isinstance(node, Mapping) and isinstance(node.get("inputs"), Mapping)
        }

    def row(self, notes: Notes) -> Row:
        found = [key for key, node in self._nodes.items() if "Sampler" in _class_of(node)]
        samplers = [key for key in found if _class_of(self._nodes[key]) == _SAMPLER]
        if len(samplers) != 1 or len(found) != 1:
            names = ", ".join(sorted(_class_of(self._nodes[key]) for key in found)) or "none"
            raise _Rejected(f"must have one KSampler and no other sampler; it has {names}")
        inputs = self._nodes[samplers[0]]["inputs"]
        denoise = self._value(inputs, "denoise")
        if denoise is not None and float(denoise) != 1:
            raise _Rejected(f"has denoise={denoise}; only 1 can start from no image")
        latent = self._linked(inputs, "latent_image", _LATENTS)
        for kind in sorted({*map(_class_of, self._nodes.values())} - _HARMLESS):
            notes.leave_out(f"node {kind}")
        given = {
            "prompt": self._text(inputs, "positive"),
            "negative_prompt": self._text(inputs, "negative"),
            "seed": self._value(inputs, "seed"),
            "steps": self._value(inputs, "steps"),
            "cfg": self._value(inputs, "cfg"),
            "sampler_name": self._value(inputs, "sampler_name"),
            SCHEDULE: self._value(inputs, "scheduler"),
            **{name: self._value(latent, name) for name in ("width", "height", "batch_size")},
        }
        row = translated({n: value for n, value in given.items() if value is not None}, notes)
        if loras := self._loras(inputs, notes):
            row["loras"] = ",".join(loras)
        if skipped := self._skipped_layers(inputs):
            row["clip_skip"] = skipped
        return row

    def _linked(self, inputs: Mapping[str, Any], name: str, classes: frozenset[str]) -> Any:
        """Return the inputs of the node behind an input. It must be of one of the classes."""
        node = self._node(inputs.get(name))
        if node is None or _class_of(node) not in classes:
            what = "nothing" if node is None else _class_of(node)
            raise _Rejected(f"has {what} as {name}; only {' or '.join(sorted(classes))} is read")
        return node["inputs"]

    def _node(self, link: Any) -> Mapping[str, Any] | None:
        return self._nodes.get(str(link[0])) if isinstance(link, list) and link else None

    def _value(self, inputs: Mapping[str, Any], name: str) -> Any:
        """Return the value of an input, through nodes that only hold it."""
        value = inputs.get(name)
        for _ in range(_MAX_LINKS):
            node = self._node(value)
            if node is None:
                break
            held = [node["inputs"][key] for key in (name, *_TEXT_INPUTS) if key in node["inputs"]]
            if not held:
                raise _Rejected(f"computes {name} with {_class_of(node)}, which is not read")
            value = held[0]
        if isinstance(value, list | dict):
            raise _Rejected(f"has no value as {name}: {shown_value(repr(value))}")
        return value

    def _text(self, inputs: Mapping[str, Any], name: str) -> Any:
        return self._value(self._linked(inputs, name, _TEXT_ENCODERS), "text")

    def _chain(self, inputs: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
        """Yield the nodes behind an input and behind the input of that name of each."""
        node = self._node(inputs.get(name))
        for _ in range(_MAX_LINKS):
            if node is None:
                return
            yield node
            node = self._node(node["inputs"].get(name))

    def _loras(self, inputs: Mapping[str, Any], notes: Notes) -> list[str]:
        """Return the LoRA between the checkpoint and the sampler."""
        found = []
        for node in self._chain(inputs, "model"):
            kind, own = _class_of(node), node["inputs"]
            if kind in _LORAS:
                name = PurePosixPath(str(self._value(own, "lora_name")).replace("\\", "/")).stem
                found.append(f"{name}:{self._value(own, 'strength_model')}")
            elif kind in _CHECKPOINTS:
                notes.leave_out("model", own.get("ckpt_name", own.get("unet_name", "")))
        return found

    def _skipped_layers(self, inputs: Mapping[str, Any]) -> int:
        encoder = self._linked(inputs, "positive", _TEXT_ENCODERS)
        for node in self._chain(encoder, "clip"):
            if _class_of(node) == "CLIPSetLastLayer":
                return abs(int(self._value(node["inputs"], "stop_at_clip_layer"))) - 1
        return 0


def _class_of(node: Mapping[str, Any]) -> str:
    return str(node.get("class_type", ""))
