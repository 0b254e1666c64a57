"""Submit several jobs from asyncio, and print each one as it ends.

Run it against a running fleet:

    export IMAGEFLEET_REDIS_URL=redis://localhost:6379/0
    python examples/async_submit.py
"""

import asyncio

from imagefleet import AsyncClient

PROMPTS = ["a red circle", "a blue star", {"prompt": "a green ring", "seed": 3}]


async def main() -> None:
    async with AsyncClient() as client:
        jobs = await client.submit_many(PROMPTS, num_inference_steps=20)
        async for job in client.as_completed(jobs, timeout=300):
            status = await job.status()
            print(f"{status.request.prompt}: {status.state}")


if __name__ == "__main__":
    asyncio.run(main())
