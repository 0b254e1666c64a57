"""Estimate the memory that a batch of Stable Diffusion 3 needs on a device besides the weights.

Input: configs, a shape, a workload. Output: bytes. It reads no weights and asks no device, so that
it also serves hosts that are not here.
"""

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion_3.configs import (
    GUIDED_ROWS,
    TEXT_LENGTH,
    Configs,
)
from imagefleet.worker.engine.networks.transformer_memory import (
    BlockSizes,
    batch_bytes,
    sequence_bytes,
    t5_bytes,
)
from imagefleet.worker.engine.networks.vae_memory import decoder_bytes
from imagefleet.worker.engine.placement.memory_check import Workload


def workspace_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    """Estimate the bytes that a device needs for a batch of this shape, besides the weights.

    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    Texts are encoded one at a time, and a batch has the states of all.
    """
    decoder = decoder_bytes(configs.vae, shape.height, shape.width, workload)
    rows, transformer = GUIDED_ROWS * workload.per_device_batch, configs.transformer
    sizes = BlockSizes(
        width=transformer.width,
        inner_width=transformer.inner_width,
        heads=transformer.num_attention_heads,
        head_dim=transformer.attention_head_dim,
        masked=False,
    )
    states = configs.text_tokens * transformer.joint_attention_dim * workload.dtype.itemsize
    tokens = configs.image_tokens(shape) + configs.text_tokens
    step = rows * (states + sequence_bytes(sizes, tokens, workload))
    texts = 0 if configs.t5 is None else t5_bytes(configs.t5, TEXT_LENGTH, workload)
    return batch_bytes(decoder, step, texts, workload)
