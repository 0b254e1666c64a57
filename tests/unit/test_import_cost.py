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
