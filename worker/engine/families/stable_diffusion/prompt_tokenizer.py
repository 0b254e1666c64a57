"""Load the tokenizers of Stable Diffusion's text encoders.

Input: the files of a checkpoint and its configs. Output: ids for each prompt. A family whose
prompts have a template would put it in its module of this name.
"""

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.tokenizers.clip import ClipTokenizer
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer


def load_tokenizer(files: CheckpointFiles, configs: Configs) -> PromptTokenizer:
    """Load the tokenizers of all text encoders.

    Raises:
        CheckpointError: files are missing, are of another kind of tokenizer, or do not fit their
            text encoders.
    """
    pipeline, tokenizers = configs.pipeline, []
    for name, encoder, config in zip(
        pipeline.tokenizers, pipeline.text_encoders, configs.text_encoders, strict=True
    ):
        tokenizer = ClipTokenizer(files, name)
        tokenizer.require_fits(encoder, config.max_position_embeddings, config.vocab_size)
        tokenizers.append(tokenizer)
    prompt_tokenizer = PromptTokenizer(tokenizers)
    prompt_tokenizer.require_equal_lengths()  # the UNet reads the states side by side
    return prompt_tokenizer
