"""The bundled model's images show what their prompts describe, through OpenAI's own client."""

import base64
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import openai
import pytest
from PIL import Image

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet, fleet_with_gateways
from tests.support.judge import judge

SCENES = {
    "a small red circle on the left on a blue background": ("red", "circle", "blue"),
    "a large yellow star in the center on a purple background": ("yellow", "star", "purple"),
    "a large white heart at the top on a black background": ("white", "heart", "black"),
    "a medium blue square at the bottom on a yellow background": ("blue", "square", "yellow"),
}


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, redis_server: LocalRedisServer
) -> Iterator[GatewayFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_with_gateways(
        folder, redis_server.url, IMAGEFLEET_MODEL="shapes", IMAGEFLEET_CACHE_DIR=f"{folder}/cache"
    ) as fleet:
        yield fleet


def test_images_show_what_their_prompts_describe(fleet: GatewayFleet) -> None:
    right = 0
    with openai.OpenAI(base_url=f"{fleet.open_url}/v1", api_key="any", timeout=900) as client:
        for prompt, expected in SCENES.items():
            answer = client.images.generate(prompt=prompt, n=2, extra_body={"seed": 1})
            for image in answer.data or ():
                file = BytesIO(base64.b64decode(image.b64_json or ""))
                seen = judge(np.asarray(Image.open(file).convert("RGB")))
                right += (seen.colour, seen.shape, seen.background) == expected
    assert right >= 6
