"""Draw tokenizer files: added tokens, textual inversions, padding, lengths, contradictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.parity.fuzz.draft import REMOVED, Draft, Tensors

NEW_TOKENS = ("<cat>", "<red-circle>", "sks", "<Mixed Case>", "blue", "!!")
PADS: list[Any] = [
    *("!", "<|endoftext|>", "<pad>", "a</w>"),
    {"__type": "AddedToken", "content": "!", "lstrip": False, "normalized": True, "rstrip": False},
    {"content": "!"},
    None,
]
CONFIG: dict[str, list[Any]] = {
    "model_max_length": [77, 77, 20, 8, 2, 100, 10**30, REMOVED],
    "padding_side": ["right", "left"],
    "truncation_side": ["right", "left"],
    "split_special_tokens": [True, False],
    "add_bos_token": [True, False],
    "add_prefix_space": [True, False],
    "do_lower_case": [True, False],
    "bos_token": ["<|startoftext|>", "a</w>", "<|endoftext|>", REMOVED],
    "eos_token": ["<|endoftext|>", "blue</w>", REMOVED],
    "unk_token": ["<|endoftext|>", "!", REMOVED],
    "sep_token": ["red</w>", "<sep>"],
    "mask_token": ["blue</w>"],
    "extra_special_tokens": [["red</w>"], ["<new>"], {"image_token": "red</w>"}, []],
    "additional_special_tokens": [["blue</w>"], ["<new>"]],
    "image_token": ["red</w>", "<new>"],
    "tokenizer_class": ["T5Tokenizer", "CLIPTokenizer"],
    "added_tokens_decoder": [{}],
    "errors": ["replace"],
    "name_or_path": ["somewhere"],
}


def change_tokenizer_config(draft: Draft) -> None:
    """Change the fields of tokenizer_config.json."""
    folder = draft.random.choice(draft.tokenizers)
    if draft.random.random() < 0.3:
        draft.edit(f"{folder}/tokenizer_config.json", pad_token=draft.random.choice(PADS))
    else:
        name = draft.random.choice(sorted(CONFIG))
        value = draft.random.choice(CONFIG[name])
        folders = draft.tokenizers if name == "model_max_length" else [folder]
        for each in folders if draft.random.random() < 0.8 else [folder]:
            draft.edit(f"{each}/tokenizer_config.json", **{name: value})
    _ask_for_everything(draft)


def change_special_tokens_map(draft: Draft) -> None:
    """Write the older special_tokens_map.json."""
    folder = draft.random.choice(draft.tokenizers)
    pads = [pad for pad in PADS if pad is not None]
    fields: dict[str, Any] = {"pad_token": draft.random.choice(pads)}
    if isinstance(fields["pad_token"], dict):
        fields["pad_token"] = {"content": "!", "lstrip": False, "normalized": True}
    for name in ("eos_token", "unk_token", "pad_token"):
        if draft.random.random() < 0.3:
            normalized = draft.random.random() < 0.7
            fields[name] = {"content": "<|endoftext|>", "normalized": normalized}
    if draft.random.random() < 0.3:
        fields["extra_special_tokens"] = ["red</w>"]
    draft.edit(f"{folder}/special_tokens_map.json", **fields)
    _ask_for_everything(draft)


def change_files(draft: Draft) -> None:
    """Let tokenizer.json and vocab.json contradict each other, or remove one of them."""
    folder = draft.random.choice(draft.tokenizers)
    names = ("tokenizer.json", "vocab.json", "merges.txt")
    present = [name for name in names if (draft.folder / folder / name).is_file()]
    name = draft.random.choice(present)
    path = draft.folder / folder / name
    if draft.random.random() < 0.4:
        draft.note(f"{folder}/{name} removed")
        path.unlink()
    elif name == "merges.txt":
        draft.note(f"{folder}/{name} has one merge less")
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    else:
        draft.note(f"{folder}/{name}: two ids swapped")
        content = draft.read(f"{folder}/{name}")
        vocabulary = content["model"]["vocab"] if name == "tokenizer.json" else content
        vocabulary["red</w>"], vocabulary["blue</w>"] = (
            vocabulary["blue</w>"],
            vocabulary["red</w>"],
        )
        draft.write(f"{folder}/{name}", content)
    _ask_for_everything(draft)


def add_tokens(draft: Draft) -> None:
    """Add tokens as a textual inversion does, in one of the forms in which files hold them."""
    tokens = draft.random.sample(NEW_TOKENS, draft.random.choice([1, 1, 2]))
    if draft.random.random() < 0.5:
        tokens = [name for token in tokens[:1] for name in (token, f"{token}_1", f"{token}_2")]
    form = draft.random.choice(["added_tokens.json", "added_tokens_decoder", "tokenizer.json"])
    normalized = draft.random.choice([True, False])
    write_tokens(draft, tokens, form, normalized)
    draft.note(f"{form}: {tokens}, normalized={normalized}")
    if draft.random.random() < 0.9:
        for encoder in draft.text_encoders:
            grow_embedding(draft, encoder, len(tokens))
        draft.note("embeddings of the new tokens")
    draft.job.prompts = [f"a {tokens[0]} on red", f"blue{tokens[-1].upper()} a,{tokens[0]}!"]
    draft.job.negative_prompts = [tokens[-1], "red"]


def write_tokens(draft: Draft, tokens: Sequence[str], form: str, normalized: bool) -> None:
    """Add tokens to every tokenizer, with the ids that follow its vocabulary.

    Args:
        form: The file: `added_tokens.json`, `tokenizer.json`, or `added_tokens_decoder` for that
            field of tokenizer_config.json.
    """
    for folder in draft.tokenizers:
        first = _vocabulary_size(draft, folder)
        numbers = {token: first + index for index, token in enumerate(tokens)}
        _write_numbered(draft, folder, numbers, form, normalized)


def _write_numbered(
    draft: Draft, folder: str, numbers: dict[str, int], form: str, normalized: bool
) -> None:
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "special": False}
    tokens = {
        number: {"content": token, "normalized": normalized, **flags}
        for token, number in numbers.items()
    }
    if form == "added_tokens.json":
        draft.write(f"{folder}/added_tokens.json", numbers)
    elif form == "added_tokens_decoder":
        config = draft.read(f"{folder}/tokenizer_config.json")
        config["added_tokens_decoder"] = {str(number): token for number, token in tokens.items()}
        draft.write(f"{folder}/tokenizer_config.json", config)
    else:
        fast = draft.read(f"{folder}/tokenizer.json") or _fast_file(draft, folder)
        fast["added_tokens"] += [{"id": number, **token} for number, token in tokens.items()]
        draft.write(f"{folder}/tokenizer.json", fast)


def _fast_file(draft: Draft, folder: str) -> dict[str, Any]:
    """Return a tokenizer.json with the vocabulary and the merges of the older files."""
    lines = (draft.folder / folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    model = {
        "type": "BPE",
        "vocab": draft.read(f"{folder}/vocab.json"),
        "merges": [line for line in lines if line],
        "unk_token": "<|endoftext|>",
        "end_of_word_suffix": "</w>",
    }
    empty = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"version": "1.0", **dict.fromkeys(empty), "added_tokens": [], "model": model}


def _vocabulary_size(draft: Draft, folder: str) -> int:
    """Return the number of tokens before any is added."""
    fast = draft.read(f"{folder}/tokenizer.json")
    return len(fast["model"]["vocab"] if fast else draft.read(f"{folder}/vocab.json"))


def grow_embedding(draft: Draft, encoder: str, rows: int) -> None:
    """Add `rows` random embeddings to a text encoder."""
    file = f"{encoder}/model.safetensors"
    [key] = [key for key in draft.keys(file) if key.endswith("token_embedding.weight")]

    def grow(tensors: Tensors) -> None:
        table = tensors[key]
        extra = np.random.RandomState(rows).standard_normal((rows, table.shape[1]))
        tensors[key] = np.concatenate([table, extra.astype(np.float32).astype(table.dtype)])

    draft.tensors(file, grow)
    config = draft.read(f"{encoder}/config.json")
    config["vocab_size"] += rows
    draft.write(f"{encoder}/config.json", config)


def _ask_for_everything(draft: Draft) -> None:
    """Ask for prompts that are long, and that hold the tokens that were changed."""
    prompts = [
        "red! blue <new> <sep> a</w> " + "a circle " * 12,
        "  on a\tcircle, 7! <|EndOfText|> red ",
    ]
    draft.job.prompts = prompts
    draft.job.negative_prompts = draft.random.choice([None, ["", "blue!"], ["red red", ""]])
