"""Define what a row of a table holds: combinations of a sample and the h of this and earlier rows.

A solver that keeps more than its last sample, such as a predictor-corrector, becomes a row because
the sample that it kept is itself such a combination. See `coefficients` for h. This module uses
numpy only.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.coefficients import LAGS

Combination = NDArray[np.float64]
"""It is `[1 + LAGS]`: the factor of the sample, then those of h, h', h'' …"""

SAMPLE: Final[Combination] = np.eye(1 + LAGS)[0]
"""It is the sample of this row."""


def lag(count: int) -> Combination:
    """Return the h of `count` rows ago; 0 is this row's."""
    return np.asarray(np.eye(1 + LAGS)[1 + count])


def sample_before(previous: Combination) -> Combination:
    """Return the sample of the row before, if that row made this row's sample by `previous`."""
    keep, *lags = previous
    known = np.array([0.0, 0.0, *lags[:-1]])
    return np.asarray((SAMPLE - known) / keep)


def at_next_row(kept: Combination, made: Combination) -> Combination:
    """Return what was `kept` at the row before, if that row made this row's sample by `made`."""
    keep, *lags = kept
    return np.asarray(keep * sample_before(made) + np.array([0.0, 0.0, *lags[:-1]]))


def starting_from(step: Combination, start: Combination) -> Combination:
    """Return what `step` makes of another sample than that of this row."""
    keep = step[0]
    return np.asarray(step + keep * (start - SAMPLE))


def as_lags(combination: Combination) -> tuple[float, tuple[float, ...]]:
    """Return A and the B's of a row."""
    keep, *lags = (float(factor) for factor in combination)
    return keep, tuple(lags)
