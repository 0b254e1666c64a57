"""Name what a denoiser predicts of a noisy sample."""

from enum import StrEnum
from typing import Final


class Prediction(StrEnum):
    """It is what a model predicts (v: Salimans & Ho 2022; flow: Lipman et al. 2023)."""

    EPSILON = "epsilon"
    V = "v_prediction"
    SAMPLE = "sample"
    FLOW = "flow_prediction"
    """It is eps - x0 of a flow model, whose noise schedule is a `FlowSchedule`."""


WITH_BETAS: Final = (Prediction.EPSILON, Prediction.V, Prediction.SAMPLE)
"""A model that was trained with betas predicts one of these."""
