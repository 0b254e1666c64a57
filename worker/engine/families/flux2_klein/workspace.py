"""Estimate the memory that a batch of FLUX.2 klein needs on a device besides the weights.

Input: configs, a shape, a workload. Output: bytes. It reads no weights and asks no device, so that
it also serves hosts that are not here.
"""

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux2_klein.configs import (
    IMAGE_LIMITS,
    TEXT_LENGTH,
    Configs,
)
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
    Texts are encoded one at a time, and a batch has the states of all. If a slot has a reference
    image, all slots compute its tokens, and attention has a mask.
    """
    decoder = decoder_bytes(configs.vae.decoder, shape.height, shape.width, workload)
    rows, transformer = workload.per_device_batch * configs.guided_rows, configs.transformer
    takes_reference = IMAGE_LIMITS.allow(shape.height, shape.width)
    sizes = BlockSizes(
        width=transformer.width,
        # A single block has the inputs of attention and of the gated layer side by side.
        inner_width=3 * transformer.width + 2 * transformer.inner_width,
        heads=transformer.num_attention_heads,
        head_dim=transformer.attention_head_dim,
        masked=takes_reference,
    )
    tokens = (2 if takes_reference else 1) * configs.image_tokens(shape) + TEXT_LENGTH
    states = TEXT_LENGTH * transformer.joint_attention_dim * workload.dtype.itemsize
    step = rows * (states + sequence_bytes(sizes, tokens, workload))
    texts = sequence_bytes(BlockSizes.of_text(configs.text_encoder), TEXT_LENGTH, workload)
    return batch_bytes(decoder, step, texts, workload)
