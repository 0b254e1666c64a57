"""Ask transformers for the hidden states of Qwen3.

There is no input. The output is the ids and the hidden states of the prompts of `qwen_case`.
"""

import tempfile
from pathlib import Path

import torch
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from tools.parity.checkpoints import Tensors
from tools.parity.flow.qwen_case import CONFIG, LENGTH, PROMPTS
from tools.parity.flow.qwen_tokenizer import write_tokenizer
from tools.parity.known.write import draw


def draw_weights(network: torch.nn.Module, name: str, prefix: str = "") -> None:
    """Draw the weights of a network by their names without `prefix`."""
    tied = set(getattr(network, "_tied_weights_keys", None) or ())
    drawn = {
        key: torch.from_numpy(draw(name, key.removeprefix(prefix), tuple(tensor.shape)))
        for key, tensor in network.state_dict().items()
        if key not in tied
    }
    missing, unexpected = network.load_state_dict(drawn, strict=False)
    if set(missing) - tied or unexpected:
        raise ValueError(f"{missing} are missing, {unexpected} are unexpected")


def make_text_encoder() -> Qwen3ForCausalLM:
    """Return the text encoder with drawn weights."""
    network = Qwen3ForCausalLM(Qwen3Config(**CONFIG))
    network.eval()
    draw_weights(network, "text_encoder", "model.")
    network.tie_weights()
    return network


@torch.no_grad()
def qwen_states() -> Tensors:
    """Return `ids`, and `states` stacked, `[layers + 1, prompts, tokens, width]`."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in PROMPTS
    ]
    inputs = tokenizer(
        chats, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
    )
    states = make_text_encoder()(**inputs, output_hidden_states=True).hidden_states
    return {"ids": inputs.input_ids.int(), "states": torch.stack(states)}
