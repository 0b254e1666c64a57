"""LoRA files of Z-Image are read in the formats in which diffusers reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.lora import LoraFactors, read_loras
from imagefleet.worker.engine.families.z_image.lora_names import LORA_NAMES
from imagefleet.worker.engine.options.lora_options import LoraOption
from tests.unit.engine.flow_family import Z_IMAGE
from tools.parity.flow.z_image_loras import FORMATS, LoraFormat, layer_shape

SHAPES: Final = {
    f"layers.0.attention.{name}.weight": layer_shape(name)
    for name in ("to_q", "to_k", "to_v", "to_out.0")
}


def _read(each: LoraFormat, path: Path) -> Mapping[str, Sequence[LoraFactors]]:
    save_file(each.tensors, path)
    option = LoraOption(name="a", path=str(path), scale=1.0)
    return read_loras([option], {"transformer": SHAPES}, LORA_NAMES)["transformer"]


def test_a_file_is_read_as_in_diffusers_or_refused_where_diffusers_does_not_read_it(
    tmp_path: Path,
) -> None:
    answers, path = Z_IMAGE.answers["lora_formats"], tmp_path / "a.safetensors"
    assert 0 < answers.sum() < len(FORMATS)
    for each, is_read in zip(FORMATS, answers, strict=True):
        try:
            read = _read(each, path)
        except CheckpointError:
            assert not is_read, each
            continue
        assert is_read, each
        assert list(read) == [f"{name}.weight" for name in each.weights]
        for (factors,), change in zip(read.values(), each.changes, strict=True):
            whole = (slice(None), slice(None))
            np.testing.assert_allclose(
                factors.delta(change.shape, whole), change, rtol=1e-5, atol=1e-6
            )
