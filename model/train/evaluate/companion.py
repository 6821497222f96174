"""What a pretraining reads or trains beside its model."""

from __future__ import annotations

from typing import Any

from torch import nn

from cloze.core.stages.stage import BuildContext
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.precision import Precision


class Companion:
    """Something beside the model; this base class changes nothing of a training.

    Attributes:
        uncompiled: what of it a compiled step cannot run, in words; empty: the step may be.
    """

    uncompiled: str = ""

    def extend(self, network: nn.Module) -> None:
        """Add modules that are trained with the network and saved in its checkpoints.

        Their names begin with `beside_`, by which a loaded model leaves them out.
        """

    def module(
        self, network: nn.Module, precision: Precision, device_type: str
    ) -> PretrainModule | None:
        """Return the trained module in place of the objectives' own; None: theirs."""
        return None

    def save(self, build: BuildContext, network: nn.Module) -> dict[str, Any]:
        """Save what was trained beside the model; return its entries of the summary."""
        return {}
