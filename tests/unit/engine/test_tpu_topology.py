"""Programs are compiled with the options that JAX sets on a TPU host."""

import os
import subprocess
import sys

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.engine.placement.tpu_topology import libtpu_variables, placement_of


@pytest.mark.parametrize(
    "options",
    ["", "--xla_tpu_other=1", "--xla_tpu_use_enhanced_launch_barrier=false --xla_tpu_other=1"],
)
def test_the_options_of_libtpu_are_those_of_a_tpu_host(options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import jax, os; print(repr(os.environ['LIBTPU_INIT_ARGS']))"],
        # JAX then prepares itself as on a TPU host.
        env={**os.environ, "JAX_FORCE_TPU_INIT": "1", "LIBTPU_INIT_ARGS": options},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert repr(libtpu_variables(options)["LIBTPU_INIT_ARGS"]) == done.stdout.strip()


def test_without_the_compiler_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(ConfigurationError, match=r"needs the TPU compiler, libtpu, .*\[tpu\]"):
        placement_of("v5e-8")
