"""Test programs that submit jobs, in one process: no server, no worker, no JAX, no Celery.

    from imagefleet.testing import FakeFleet

    with FakeFleet() as fleet:
        result = fleet.client.submit("a red star").result()
        assert result.images[0].open().size == (64, 64)

It needs the extra `testing`. docs/testing.md explains it.
"""

from importlib import import_module

from imagefleet.shared.process.extras import how_to_install

try:
    import_module("lupa")  # fakeredis runs scripts with it, and does not say so if it is missing

    from imagefleet.testing.fake_fleet import FakeFleet
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; {how_to_install('testing')}", name=error.name) from None

__all__ = ["FakeFleet"]
