"""A plan says which mesh a published flow model needs on a TPU host, by its configs alone."""

from pathlib import Path

import pytest

from imagefleet.worker.engine.loading.host_plan import plan_host
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.tpu_hosts import TpuHost
from tools.tpu.models import write_flow_configs


@pytest.mark.parametrize(
    ("model", "host", "devices_a_copy", "gigabytes"),
    [
        ("flux2_klein_4b", "v5e-8", 1, 14.1),
        ("flux2_klein_4b", "v6e-8", 1, 14.1),
        ("flux2_klein_9b", "v5e-8", 4, 30.0),
        ("flux2_klein_9b", "v6e-8", 1, 30.0),
        ("z_image", "v5e-8", 2, 20.3),
        ("z_image", "v6e-8", 1, 20.3),
        ("flux1_schnell", "v5e-8", 4, 33.7),
        ("flux1_dev", "v6e-8", 2, 33.7),
        ("sd3_medium", "v5e-8", 2, 15.1),
        ("sd3.5_medium", "v6e-8", 1, 15.5),
        ("sd3.5_large", "v5e-8", 4, 27.5),
    ],
)
def test_the_fewest_devices_that_hold_a_copy_and_an_image_of_1024_are_known(
    tmp_path: Path, model: str, host: str, devices_a_copy: int, gigabytes: float
) -> None:
    """With whole batches and with streams."""
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
