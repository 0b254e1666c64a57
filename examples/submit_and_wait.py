"""Submit one job, wait for it, and print where its image is.

Run it against a running fleet:

    export IMAGEFLEET_REDIS_URL=redis://localhost:6379/0
    python examples/submit_and_wait.py
"""

from imagefleet import Client, JobFailed, ResultTimeout


def main() -> None:
    with Client() as client:
        job = client.submit("a small red circle on the left on a blue background", seed=7)
        try:
            result = job.result(timeout=300)
        except ResultTimeout:
            raise SystemExit(f"job {job.id} is still running; wait again later") from None
        except JobFailed as error:
            raise SystemExit(f"{error} (code {error.failure_code})") from None
        [image] = result.images
        print(
            f"{job.id}: {image.width}x{image.height} {image.format}, seed {image.seed}, {image.url}"
        )


if __name__ == "__main__":
    main()
