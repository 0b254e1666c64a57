"""Find what is waiting or in flight in the lanes of a fleet, and let callbacks be sent at once."""

from imagefleet.shared.redis_client.lanes import Lane, Lanes


def make_callbacks_due(lanes: Lanes) -> None:
    """Make all waiting callbacks due now, since their retry schedule is three days long."""
    for lane in lanes:
        waiting = lane.client.zrange(f"{lane.namespace}:outbox", 0, -1)
        if waiting:
            due = {str(each): 0.0 for each in waiting}
            lane.client.zadd(f"{lane.namespace}:outbox", due, xx=True)


def is_idle(lanes: Lanes, pids: set[int]) -> bool:
    """Return whether nothing is in flight or waiting, and exactly the workers `pids` hold a lease.

    The lease of a killed worker remains until a living one reclaims it. A worker that has just
    started has none yet. The name of a worker begins with `host:pid:`.
    """
    return all(_is_idle(lane, pids) for lane in lanes)


def _is_idle(lane: Lane, pids: set[int]) -> bool:
    client, namespace = lane.client, lane.namespace
    names = ("outbox", "later", "deliveries", "queues")
    keys = [f"{namespace}:{name}" for name in names]
    in_flight = (f"{namespace}:claims:*", f"{namespace}.*")  # claims, and the lists of messages
    found = [next(client.scan_iter(each, count=10_000), None) for each in in_flight]
    leases = {int(str(name).split(":")[1]) for name in client.zrange(f"{namespace}:leases", 0, -1)}
    return not client.exists(*keys) and found == [None, None] and leases == pids
