"""Estimate the memory that a batch of Z-Image needs on a device besides the weights.

Input: configs, a shape, a workload. Output: bytes. It reads no weights and asks no device, so that
it also serves hosts that are not here.
"""

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.z_image.configs import GUIDED_ROWS, TEXT_LENGTH, Configs
from imagefleet.worker.engine.families.z_image.transformer_config import TOKENS_MULTIPLE
from imagefleet.worker.engine.networks.transformer_memory import (
    BlockSizes,
    batch_bytes,
    sequence_bytes,
)
from imagefleet.worker.engine.networks.vae_memory import decoder_bytes
from imagefleet.worker.engine.placement.memory_check import Workload


def workspace_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    """Estimate the bytes that a device needs for a batch of this shape, besides the weights.

    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    Texts are encoded one at a time, and a batch has the states of all.
    """
    decoder = decoder_bytes(configs.vae, shape.height, shape.width, workload)
    rows, transformer = workload.per_device_batch * GUIDED_ROWS, configs.transformer
    sizes = BlockSizes(
        width=transformer.dim,
        inner_width=transformer.inner_width,
        heads=transformer.n_heads,
        head_dim=transformer.dim // transformer.n_heads,
        masked=True,
    )
    tokens = configs.image_tokens(shape)
    tokens += -tokens % TOKENS_MULTIPLE + TEXT_LENGTH
    states = TEXT_LENGTH * configs.text_encoder.hidden_size * workload.dtype.itemsize
    step = rows * (states + sequence_bytes(sizes, tokens, workload))
    texts = sequence_bytes(BlockSizes.of_text(configs.text_encoder), TEXT_LENGTH, workload)
    return batch_bytes(decoder, step, texts, workload)
