"""`python -m tests.support.pod_worker`: a worker that finds its service account in another folder.

In a pod the folder is always the same one, and only root may create it.
"""

import os
from pathlib import Path

from imagefleet.shared.process import kubernetes
from imagefleet.worker.commands.cli import main

if __name__ == "__main__":
    vars(kubernetes).update(SERVICE_ACCOUNT=Path(os.environ["SERVICE_ACCOUNT_OF_THE_TEST"]))
    main()
