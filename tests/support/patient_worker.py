"""`python -m tests.support.patient_worker`: a worker that a busy machine gives the time to requeue.

`imagefleet-worker` ends by force a few seconds after it was told to quit, also if Redis has not
answered by then.
"""

from imagefleet.worker.commands.cli import main
from imagefleet.worker.startup import drain, lifecycle

if __name__ == "__main__":
    vars(lifecycle).update(_QUIT_TIMEOUT_S=120.0, DRAIN_GRACE_S=120.0)
    vars(drain).update(DRAIN_GRACE_S=120.0)
    main()
