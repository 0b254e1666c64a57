"""Each well-known checkpoint of Stable Diffusion 3 makes what diffusers makes of it, or is refused.

The checkpoints have the blocks of the published ones, and are tiny. docs/models.md lists the same
names.
"""

import re
from pathlib import Path
from typing import Final

import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.families.registry import read_configs
from tests.unit.engine.flow_family import KNOWN_STABLE_DIFFUSION_3
from tools.parity.flow import known_stable_diffusion_3
from tools.parity.flow.stable_diffusion_3_case import write_configs

KNOWN: Final = known_stable_diffusion_3.KNOWN_STABLE_DIFFUSION_3
LOADS: Final = [name for name, known in KNOWN.items() if not known.refused]
REFUSED: Final = [name for name, known in KNOWN.items() if known.refused]


@pytest.mark.parametrize("name", LOADS)
def test_a_checkpoint_that_loads_makes_what_diffusers_makes(name: str, tmp_path: Path) -> None:
    KNOWN_STABLE_DIFFUSION_3.check_variant(tmp_path, name, KNOWN[name].variant)


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_is_refused_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    write_configs(tmp_path, KNOWN[name].variant)
    with pytest.raises(CheckpointError, match=re.escape(KNOWN[name].refused)) as caught:
        read_configs(CheckpointFiles(tmp_path))
    assert "\n" not in str(caught.value)
