"""Check that a shard's message is one of its run, and that this worker can make its plan.

A message, a plan and what the engine offers go in; an answer or an error comes out.
"""

from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import ShardMessage
from imagefleet.shared.errors import CheckpointError, UnknownRun
from imagefleet.worker.engine.interface import ModelInfo


def is_of_its_run(message: ShardMessage, runs: RunRecords) -> bool:
    """Return whether the run has this shard in this place, or has no record.

    Anybody may write a message. Without this check it could end a shard of another dataset.
    """
    try:
        run = runs.get(message.run)
    except UnknownRun:
        return True
    return message.shard < run.shards and message.destination == run.destination


def require_model(plan: Plan, info: ModelInfo) -> None:
    """Check that this worker's model can make a plan.

    Raises:
        CheckpointError: the plan was made for another model, needs prompts with weights, or needs
            other LoRA than the worker holds.
    """
    if plan.model_digest not in (None, info.digest):
        raise CheckpointError(
            f"the plan was made for model {plan.model_digest}; this worker has {info.digest}"
        )
    if plan.weighted_prompts and not info.prompt_chunks:
        raise CheckpointError(
            "the plan has prompts with weights; this worker has IMAGEFLEET_PROMPT_CHUNKS=0"
        )
    held = info.job_lora_digests
    for name, planned in plan.loras.items():
        if name not in held or planned not in (None, held[name]):
            raise CheckpointError(
                f"the plan was made for LoRA {name}={planned or 'any file'}; "
                f"this worker has {held.get(name, 'none')}"
            )
