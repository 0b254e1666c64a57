"""Serve the peer: FastAPI with stock Celery, as their guides show them.

`python -m benchmarks.http.stock_app URL` takes the address of Redis, and prints its port once it
serves. It checks the prompt and sends one Celery task for each request. It keeps no record and
makes no promise.
"""

import socket

import uvicorn
from celery import Celery
from fastapi import FastAPI
from pydantic import BaseModel, Field

from benchmarks.report import parser_of
from imagefleet.shared.redis_client.connection import celery_url


class Order(BaseModel):
    """A request has this body."""

    prompt: str = Field(min_length=1, max_length=4_000)
    num_inference_steps: int = Field(default=30, ge=1, le=1_000)
    seed: int | None = None


def build(redis_url: str) -> FastAPI:
    """Return the application."""
    app = FastAPI()
    queue = Celery(broker=celery_url(redis_url), set_as_current=False)

    @app.post("/images", status_code=201)
    def order(body: Order) -> dict[str, str]:
        return {"id": queue.send_task("images.make", kwargs=body.model_dump()).id}

    return app


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("redis_url")
    redis_url = parser.parse_args().redis_url
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(build(redis_url), access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
