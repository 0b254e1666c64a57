"""A plan says which mesh a published flow model needs on a TPU host, by its configs alone."""

from pathlib import Path

import pytest

from imagefleet.worker.engine.loading.host_plan import plan_host
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.tpu_hosts import TpuHost
from tools.tpu.models import write_flow_configs


@pytest.mark.parametrize(
    ("model", "host", "devices_a_copy", "gigabytes", "milliseconds"),
    [
        ("flux2_klein_4b", "v5e-8", 1, 14.1, 213),
        ("flux2_klein_4b", "v6e-8", 1, 14.1, 72),
        ("flux2_klein_9b", "v5e-8", 4, 30.0, None),
        ("flux2_klein_9b", "v6e-8", 1, 30.0, None),
        ("z_image", "v5e-8", 2, 20.3, 2 * 416),
        ("z_image", "v6e-8", 1, 20.3, 2 * 117),
        ("flux1_schnell", "v5e-8", 4, 33.7, None),
        ("flux1_schnell", "v6e-8", 2, 33.7, 147),
        ("sd3_medium", "v6e-8", 1, 15.5, None),
        ("sd3.5_medium", "v5e-8", 2, 16.3, None),
    ],
)
def test_the_fewest_devices_that_hold_a_copy_and_an_image_of_1024_are_known(
    tmp_path: Path,
    model: str,
    host: str,
    devices_a_copy: int,
    gigabytes: float,
    milliseconds: float | None,
) -> None:
    """With whole batches and with streams. Milliseconds are those that the compiler's estimates for
    blocks make a step (docs/tpu.md), with whole copies of the weights: one of Z-Image runs the
    transformer twice, as it has guidance. None: there is no time."""
    write_flow_configs(tmp_path, model)
    for streams in (False, True):
        plan = plan_host(
            tmp_path,
            TpuHost.named(host),
            options=ModelOptions(streams=streams),
            max_per_device_batch=1,
        )
        assert min(batch.model for batch in plan.batches if batch.fits) == devices_a_copy
        assert plan.batches[0].need.weights == pytest.approx(gigabytes * 1e9, rel=0.005)
        [seconds] = plan.batches[0].step_seconds.values()
        expected = None if milliseconds is None else pytest.approx(milliseconds / 1e3, rel=0.03)
        assert seconds == expected
