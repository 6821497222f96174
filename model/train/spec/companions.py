"""Table of what a pretraining may have beside its model. Imports no torch: part of the config.

A companion has inputs and options of its own. A new one is a row here and a module with a subclass
of `cloze.model.train.evaluate.companion.Companion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cloze.core.plugins import Table
from cloze.core.stages.stage import InputSpec


class CompanionKind(NamedTuple):
    """A kind of companion, a row of `COMPANIONS`."""

    # `module:function`: (config, build, model, dataset, tokenizer, objectives) -> the companion, or
    # None if the config and the inputs name none
    load: str
    options: str = ""  # `module:class` of its fields in the config
    inputs: Mapping[str, InputSpec] = {}


COMPANIONS: Table[CompanionKind] = Table("companions", "companion", {})


def companion_inputs() -> dict[str, InputSpec]:
    """Return the inputs of all companions."""
    kinds = COMPANIONS.loaded().values()
    return {role: spec for kind in kinds for role, spec in kind.inputs.items()}
