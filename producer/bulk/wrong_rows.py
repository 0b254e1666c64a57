"""Find samples whose metadata differ from the rows that were planned.

Input: a plan, its rows by sample key and the metadata of samples. Output: the keys of wrong samples
by what is wrong. This module knows no store.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from imagefleet.shared.bulk.plan import Plan, ShardRow
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, ROW_PARAMETERS

_CHOSEN_PARAMETERS: Final = tuple(
    name
    for name in ROW_PARAMETERS
    if PARAMETERS[name].is_always_recorded and name != "negative_prompt"
)
"""All metadata hold these parameters. Where neither the row nor the run sets one, the model does.
"""


def wrong_rows(
    plan: Plan, wanted: Mapping[str, ShardRow], documents: Iterable[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the keys of samples that are not as planned, by what is wrong.

    Args:
        wanted: the row of each planned sample, by its key. Other samples are left out.
    """
    wrong: dict[str, list[str]] = defaultdict(list)
    for document in documents:
        row = wanted.get(document["key"])
        if row is None:
            continue
        if (document["prompt"], document["seed"]) != (row.prompt, row.seed):
            wrong["wrong prompt or seed"].append(document["key"])
        elif not _has_parameters(document, plan.parameters_of(row)):
            wrong["wrong parameters"].append(document["key"])
    return wrong


def _has_parameters(document: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Return whether metadata hold the parameters that a row or its run sets."""
    texts = [str(each.get("negative_prompt", "")).strip() for each in (document, planned)]
    return texts[0] == texts[1] and all(  # an empty text is stored as a blank by newer releases
        document.get(name) == planned[name] for name in _CHOSEN_PARAMETERS if name in planned
    )
