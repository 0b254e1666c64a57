"""Read the tokens that the files of a tokenizer add to its vocabulary, as transformers 5 does.

Input: the tokenizer's folder in a checkpoint, and its kind. Output: the tokens that are never
split, and those with a role. This module reads no vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from tokenizers import AddedToken

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader

_NAMED: Final = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
"""Every tokenizer of transformers has tokens in these fields, in the order of their addition."""

Added = str | AddedToken


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """It says what the files of one class of transformers' tokenizers may leave out."""

    name: str
    """It is the name of the tokenizer in errors."""
    default_tokens: Mapping[str, str]
    """It has the default tokens of the class, by their fields."""
    required: tuple[str, ...]
    """These tokens must not be null."""


@dataclass(frozen=True, kw_only=True)
class AddedTokens:
    """It has the tokens of one tokenizer that are never split."""

    by_role: Mapping[str, str]
    """It has the start, end, unknown and padding token, by their fields, without those that are
    null."""
    in_order: list[AddedToken]
    """They are in the order of their addition. One that the vocabulary lacks gets the next free id,
    whatever id a file gives to it."""

    @classmethod
    def read(cls, files: CheckpointFiles, folder: str, kind: TokenizerKind) -> Self:
        """Read the tokens of the tokenizer in `folder`.

        Raises:
            CheckpointError: A file asks for what this engine does not do.
            AttributeError, KeyError, TypeError, ValueError: A file is broken: see `readable`.
        """
        config = files.read_optional_json(f"{folder}/tokenizer_config.json") or {}
        fast = files.read_optional_json(f"{folder}/tokenizer.json")
        _require_right_side(fast or {}, config, f"{folder}/tokenizer.json")
        _require_known_fields(config, f"{folder}/tokenizer_config.json")
        listed, legacy = _listed_tokens(files, folder, config, fast)
        named = _named_tokens({**config, **legacy}, listed, kind)
        extra = _extra_tokens({**config, **legacy})
        return cls(
            by_role={name: str(named[name]) for name in kind.default_tokens if name in named},
            in_order=_in_order(listed, named, extra),
        )


@contextmanager
def readable(folder: str) -> Iterator[None]:
    """Raise CheckpointError in place of what Python raises for broken files of a tokenizer."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: the files of the tokenizer cannot be read "
            f"({type(error).__name__}: {error}); save the tokenizer again with transformers"
        ) from error


def _require_right_side(fast: Mapping[str, Any], config: Mapping[str, Any], file: str) -> None:
    """Raise CheckpointError if transformers would pad or cut prompts on the left by `file`."""
    for part in ("padding", "truncation"):
        direction = (fast.get(part) or {}).get("direction", "Right")
        if direction != "Right" and f"{part}_side" not in config:
            raise CheckpointError(f"{file}: the {part} direction={direction!r} must be 'Right'")


def _listed_tokens(
    files: CheckpointFiles, folder: str, config: Mapping[str, Any], fast: Mapping[str, Any] | None
) -> tuple[dict[int, AddedToken], dict[str, Any]]:
    """Return the added tokens by the ids that files give them, and older fields of the config.

    A config without `added_tokens_decoder` is older than special_tokens_map.json and
    added_tokens.json, which then have precedence.
    """
    if (decoder := config.get("added_tokens_decoder")) is not None:
        return {int(number): _token(token) for number, token in decoder.items()}, {}
    fields: dict[str, Any] = {}
    for name, value in (
        files.read_optional_json(f"{folder}/special_tokens_map.json") or {}
    ).items():
        fields[name] = value
        if name == "extra_special_tokens" and isinstance(value, list):
            given = list(config.get(name) or [])
            fields[name] = given + [each for each in value if each not in given]
        elif isinstance(value, dict):
            fields[name] = _token({**value, "special": True})
    special = {str(_as_token(fields.get(name, config.get(name)))) for name in _NAMED}
    special |= {str(token) for token in _extra_tokens({**config, **fields})}
    listed = {}
    for text, number in (files.read_optional_json(f"{folder}/added_tokens.json") or {}).items():
        is_special = text in special
        listed[number] = AddedToken(
            text, lstrip=False, rstrip=False, normalized=not is_special, special=is_special
        )
    for entry in (fast or {}).get("added_tokens", []):
        token = dict(entry)
        number = token.pop("id")
        listed[number] = _token(token)
    return listed, fields


def _named_tokens(
    fields: Mapping[str, Any], listed: Mapping[int, AddedToken], kind: TokenizerKind
) -> dict[str, Added]:
    """Return the tokens with a role, by their fields."""
    by_text = {token.content: token for token in listed.values()}
    named: dict[str, Added] = {}
    for name in _NAMED:
        token = _as_token(fields.get(name, kind.default_tokens.get(name)))
        if token is not None:
            named[name] = by_text.get(str(token), token) if name in fields else token
        elif name in kind.required:
            raise ValueError(f"{name} is null; a {kind.name} tokenizer needs it")
    others = {
        name: value
        for name, value in fields.items()
        if name.endswith("_token") and name not in _NAMED and not isinstance(value, bool)
    }
    if isinstance(extra := fields.get("extra_special_tokens"), dict):
        others |= extra
    return named | _checked(others)


def _extra_tokens(fields: Mapping[str, Any]) -> list[Added]:
    """Return further special tokens that have no role."""
    tokens = fields.get("extra_special_tokens") or fields.get("additional_special_tokens") or []
    if isinstance(tokens, dict):
        return []
    return list(_checked({str(number): each for number, each in enumerate(tokens)}).values())


def _in_order(
    listed: Mapping[int, AddedToken], named: Mapping[str, Added], extra: Iterable[Added]
) -> list[AddedToken]:
    """Return all added tokens: those with an id by their ids, then those with a role.

    Of tokens that have a role and the same text but other options the last one counts.
    """
    roles = {str(token) for token in named.values()}

    def added(token: Added) -> AddedToken:
        if isinstance(token, str):
            return AddedToken(token, special=True)
        return AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special or token.content in roles,
        )

    with_id = {token.content: added(token) for _, token in sorted(listed.items())}
    others: dict[str, AddedToken] = {}
    seen: list[Added] = []
    for token in (*named.values(), *extra):
        if str(token) not in with_id and token not in seen:
            seen.append(token)
            others[str(token)] = added(token)
    return [*with_id.values(), *others.values()]


def _as_token(value: object) -> Added | None:
    """Return the token in a field, which may be a dictionary of its options."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return _token({name: option for name, option in value.items() if name != "__type"})
    if value is None or isinstance(value, str | AddedToken):
        return value
    raise ValueError(f"a token is {value!r}; it must be a text, or an object of __type AddedToken")


def _checked(tokens: Mapping[str, Any]) -> dict[str, Added]:
    checked = {name: _as_token(token) for name, token in tokens.items()}
    return {name: token for name, token in checked.items() if token is not None}


def _token(options: Mapping[str, Any]) -> AddedToken:
    return AddedToken(**options)


def _require_known_fields(config: Mapping[str, Any], file: str) -> None:
    """Check the fields that change the ids."""
    fields = ConfigReader(file, config)
    fields.ignore(*config)  # the others do not change the ids, or are read elsewhere
    fields.require(
        padding_side="right",
        truncation_side="right",
        split_special_tokens=False,
        fast_tokenizer_files=None,
        model_specific_special_tokens=None,
        init_inputs=None,
    )
    fields.finish()


def read_max_length(files: CheckpointFiles, folder: str) -> int:
    """Return the number of tokens of a prompt that a tokenizer's config gives.

    Raises:
        CheckpointError: There is none.
    """
    config = files.read_optional_json(f"{folder}/tokenizer_config.json") or {}
    if "max_len" in config:  # the older name
        config = {"model_max_length": config["max_len"], **config}
    fields = ConfigReader(f"{folder}/tokenizer_config.json", config)
    fields.ignore(*config)
    length = fields.count("model_max_length")
    fields.finish()
    return length
