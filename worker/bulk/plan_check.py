"""Check that a shard's message is one of its run, and that this worker can make its plan.

Input: a message, a plan and what the engine offers. Output: an answer or an error.
"""

from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import ShardMessage
from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.interface import ModelInfo


def is_of_its_run(message: ShardMessage, runs: RunRecords) -> bool:
    """Return whether the run has this shard in this place, or has no record.

    Anybody may write a message. Without this check it could end a shard of another dataset.
    """
    known = runs.destination_and_shards(message.run)
    if known is None:
        return True
    destination, shards = known
    return message.shard < shards and message.destination == destination


def holds_loras(plan: Plan, info: ModelInfo) -> bool:
    """Return whether the worker has files for all LoRA of a plan."""
    return plan.loras.keys() <= info.job_lora_digests.keys()


def require_model(plan: Plan, info: ModelInfo) -> None:
    """Check that this worker's model can make a plan.

    Raises:
        CheckpointError: the plan was made for another model or for other files of its LoRA, or it
            needs prompts with weights, which this worker does not read.
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
    held = info.job_lora_digests
    for name, planned in plan.loras.items():
        if planned not in (None, held.get(name, planned)):
            raise CheckpointError(
                f"the plan was made for LoRA {name}={planned}; this worker has {held[name]}; "
                "start workers with the file of the plan"
            )
