"""litellm generates images by a gateway, as a library and as a proxy.

`make litellm` installs it beside `.venv`, because it brings more than a hundred packages.
"""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet, fleet_with_gateways
from tests.support.ports import reserved_port
from tests.support.processes import ROOT, until

LITELLM: Final = ROOT / ".venv-litellm/bin"
pytestmark = pytest.mark.skipif(
    not (LITELLM / "litellm").exists(), reason="`make litellm` installs litellm"
)
_BY_LIBRARY: Final = """
import json, sys, litellm
asked = json.load(sys.stdin)
answer = litellm.image_generation(**asked)
print(json.dumps([each.model_dump() for each in answer.data]))
"""
_CONFIG: Final = """
model_list:
  - model_name: pictures
    litellm_params:
      model: openai/fake
      api_base: {url}/v1
      api_key: {key}
    model_info:
      mode: image_generation
"""


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, redis_server: LocalRedisServer
) -> Iterator[GatewayFleet]:
    with fleet_with_gateways(
        tmp_path_factory.mktemp("fleet"), redis_server.url, IMAGEFLEET_HTTP_MODELS="dall-e-3=fake"
    ) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def key(fleet: GatewayFleet) -> str:
    return ApiKeys(fleet.producer.connection).create("litellm", "gold", [Scope.SUBMIT, Scope.READ])


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which litellm asks nobody for its table of prices."""
    return {**os.environ, "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def _seeds(fleet: GatewayFleet) -> set[int]:
    return {each.request.seed for each in fleet.producer.jobs()}


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("openai/fake", {"size": "64x64"}),
        ("openai/dall-e-3", {"response_format": "b64_json", "quality": "hd"}),
    ],
)
def test_the_library_generates_by_an_address_of_its_caller(
    fleet: GatewayFleet, key: str, tmp_path: Path, model: str, more: dict[str, str]
) -> None:
    """litellm passes `response_format` only to the names that it knows."""
    asked: dict[str, Any] = {
        "model": model,
        "prompt": "a red circle",
        "n": 1,
        "api_base": f"{fleet.guarded_url}/v1",
        "api_key": key,
        "extra_body": {"seed": 11, "num_inference_steps": 3},
        **more,
    }
    done = subprocess.run(
        [LITELLM / "python", "-c", _BY_LIBRARY],
        input=json.dumps(asked),
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    [image] = json.loads(done.stdout.splitlines()[-1])
    assert image["b64_json"]
    assert 11 in _seeds(fleet)


def test_the_proxy_passes_requests_and_errors_on(
    fleet: GatewayFleet, key: str, tmp_path: Path
) -> None:
    config = tmp_path / "litellm.yaml"
    config.write_text(_CONFIG.format(url=fleet.guarded_url, key=key))
    log, master_key = tmp_path / "litellm.log", f"sk-{secrets.token_hex(32)}"
    with reserved_port() as port, log.open("w") as output:
        proxy = subprocess.Popen(
            [LITELLM / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)],
            env={**_environment(tmp_path), "LITELLM_MASTER_KEY": master_key},
            stdout=output,
            stderr=output,
        )
        try:
            until(lambda: proxy.poll() is not None or _answers(port))
            assert proxy.poll() is None, log.read_text()
            _use(fleet, f"http://127.0.0.1:{port}/v1", master_key)
        finally:
            proxy.kill()
            proxy.wait()


def _use(fleet: GatewayFleet, url: str, key: str) -> None:
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=600) as client:
        extra = {"seed": 12, "num_inference_steps": 3}
        answer = client.images.generate(model="pictures", prompt="a", extra_body=extra)
        [image] = answer.data or []
        assert image.b64_json
        assert 12 in _seeds(fleet)
        wrong = {"num_inference_steps": 5_000}
        with pytest.raises(openai.APIStatusError, match="num_inference_steps"):
            client.images.generate(model="pictures", prompt="a", extra_body=wrong)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).is_success
    except httpx.HTTPError:
        return False
