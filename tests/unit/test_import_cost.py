"""Importing the producer loads no JAX, numpy, boto3, Celery, torch, Pillow or redis."""

import subprocess
import sys

HEAVY = {"jax", "numpy", "boto3", "botocore", "celery", "kombu", "torch", "flax", "PIL", "redis"}


def test_importing_the_producer_loads_nothing_heavy() -> None:
    code = (
        "import sys, imagefleet.producer.commands.cli; from imagefleet import Client;"
        "print(*{module.partition('.')[0] for module in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


RARE = (
    "imagefleet.shared.bulk",
    "imagefleet.shared.webhooks",
    "imagefleet.shared.jobs.fleet_status",
)
"""The models in these packages took an eighth of the import, and most producers never use them."""


def test_a_client_loads_what_datasets_callbacks_and_fleets_need_at_its_first_use() -> None:
    code = (
        "import sys; from imagefleet import Client; client = Client('redis://localhost:1');"
        f"found = [each for each in sys.modules if each.startswith({RARE!r})]; print(found);"
        "client.fleet, client.outbox, client.dead_letters, client.tenants;"
        f"print(len([each for each in sys.modules if each.startswith({RARE!r})]) > 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True"]
