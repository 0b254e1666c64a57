"""Read the plan of a run. Check that a message is of the run, and that this worker can make it.

Input: a message, a store and what the engine offers. Output: a plan, an answer or an error.
"""

import hashlib

from imagefleet.shared.bulk.file_layout import MAX_TEXT_BYTES, PLAN, plan_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan, ShardRow
from imagefleet.shared.bulk.run_ids import run_ids
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import ShardMessage
from imagefleet.shared.errors import CheckpointError, PlanDamaged
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.contract.interface import ModelInfo


def is_of_its_run(message: ShardMessage, runs: RunRecords) -> bool:
    """Return whether the run has this shard in this place, or has no record.

    Anybody may write a message. Without this check it could end a shard of another dataset.
    """
    known = runs.destination_and_shards(message.run)
    if known is None:
        return True
    destination, shards = known
    return message.shard < shards and message.destination == destination


class PlanReader:
    """Reads the plan of one run again and again, because others may replace it at any time. Only a
    plan whose bytes have changed is parsed anew: one of 100,000 shards takes seconds."""

    def __init__(self, run: str, destination: str) -> None:
        self._run, self._destination = run, destination
        self._read: tuple[bytes, Plan] | None = None
        """The SHA-256 of the file that was read last, and its plan."""

    def read(self, store: ObjectStore) -> Plan:
        """Return the plan from `store`, which was opened from the destination.

        Raises:
            PlanDamaged: there is no plan, or it cannot be read, or it is that of another run:
                somebody emptied the destination and used it for another dataset.
            InvalidRequest: it is too large.
        """
        try:
            data = store.get(PLAN, MAX_TEXT_BYTES)
        except KeyError:
            raise PlanDamaged(f"{store.url}{PLAN} is missing") from None
        digest = hashlib.sha256(data).digest()
        if self._read is None or self._read[0] != digest:
            plan = Plan.load(data)
            if self._run not in run_ids(self._destination, store, plan):
                raise PlanDamaged(f"{store.url} holds the plan of another run")
            self._read = digest, plan
        return self._read[1]


def read_rows(plan: Plan, shard: ShardPlan, store: ObjectStore) -> list[ShardRow]:
    """Return the rows of a shard.

    Raises:
        PlanDamaged: their file is missing, or not the one that was planned.
        InvalidRequest: it is too large.
    """
    key = plan_key(shard.name)
    try:
        return list(plan.read_rows(shard, store.get(key, MAX_TEXT_BYTES)))
    except KeyError:
        raise PlanDamaged(f"{store.url}{key} is missing") from None


def holds_add_ons(plan: Plan, info: ModelInfo) -> bool:
    """Return whether the worker has all LoRA and ControlNets of a plan."""
    return plan.add_ons <= info.add_ons


def require_model(plan: Plan, info: ModelInfo) -> None:
    """Check that this worker's model can make a plan.

    Raises:
        CheckpointError: the plan was made for another model or for other files of its LoRA or
            ControlNets, or it needs prompts with weights, which this worker does not read.
    """
    if plan.model_digest not in (None, info.digest):
        raise CheckpointError(
            f"the plan was made for model {plan.model_digest}; this worker has {info.digest}; "
            "start workers with the model of the plan"
        )
    if plan.weighted_prompts and not info.prompt_chunks:
        raise CheckpointError(
            "the plan has prompts with weights; this worker has IMAGEFLEET_PROMPT_CHUNKS=0; "
            "start workers with 1 or more"
        )
    for kind, wanted, held in (
        ("LoRA", plan.loras, info.job_lora_digests),
        ("ControlNet", plan.controlnets, info.controlnets),
    ):
        for name, planned in wanted.items():
            if planned not in (None, held.get(name, planned)):
                raise CheckpointError(
                    f"the plan was made for {kind} {name}={planned}; this worker has "
                    f"{held[name]}; start workers with the file of the plan"
                )
