"""Name the runs that may make a plan in a store. No store is read."""

from imagefleet.shared.bulk.plan import Plan, run_id
from imagefleet.shared.storage import ObjectStore, place_of


def run_ids(destination: str, store: ObjectStore, plan: Plan) -> tuple[str, str]:
    """Return the id of the run that makes `plan` in `store`, and the id if it was started before
    ids named the server.

    Args:
        destination: the address from which `store` was opened.
    """
    return run_id(place_of(destination, store), plan), run_id(store.url, plan)
