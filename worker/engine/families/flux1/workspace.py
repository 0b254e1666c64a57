"""Estimate the memory that a batch of FLUX.1 needs on a device besides the weights.

Input: configs, a shape, a workload. Output: bytes. It reads no weights and asks no device, so that
it also serves hosts that are not here.
"""

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux1.configs import Configs
from imagefleet.worker.engine.networks.transformer_memory import (
    BlockSizes,
    batch_bytes,
    sequence_bytes,
    t5_bytes,
)
from imagefleet.worker.engine.networks.vae_memory import decoder_bytes
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.sampling.image_input import ImageInput


def workspace_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    """Estimate the bytes that a device needs for a batch of this shape, besides the weights.

    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    Texts are encoded one at a time, and a batch has the states of all. With `true_cfg_scale` the
    transformer runs on one text after the other. If a slot has a reference image, all slots compute
    its tokens, and attention has a mask.
    """
    decoder = decoder_bytes(configs.vae, shape.height, shape.width, workload)
    rows, transformer, length = workload.per_device_batch, configs.transformer, configs.text_length
    takes_reference = configs.pipeline.image_input is ImageInput.REFERENCE
    sizes = BlockSizes(
        width=transformer.width,
        # A single block has the inputs of attention, and twice those of its last layer.
        inner_width=3 * transformer.width + 2 * transformer.inner_width,
        heads=transformer.num_attention_heads,
        head_dim=transformer.attention_head_dim,
        masked=takes_reference,
    )
    states = configs.texts * length * configs.t5.d_model * workload.dtype.itemsize
    tokens = (2 if takes_reference else 1) * configs.image_tokens(shape) + length
    step = rows * (states + sequence_bytes(sizes, tokens, workload))
    texts = t5_bytes(configs.t5, length, workload)
    return batch_bytes(decoder, step, texts, workload)
