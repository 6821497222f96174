"""What a pretraining reads or trains beside its model."""

from __future__ import annotations

from collections.abc import Collection
from pkgutil import resolve_name
from typing import Any

from torch import nn

from cloze.core.stages.stage import BuildContext
from cloze.model.families.config import ModelConfig
from cloze.model.objectives.distillation import RECORDED, add_projection
from cloze.model.train.config import PretrainConfig
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.precision import Precision
from cloze.model.train.resume.initialization import Teacher
from cloze.model.train.spec.companions import COMPANIONS
from cloze.pipeline.dataset.schema import DatasetInfo


class Companion:
    """Something beside the model; this base class changes nothing of a training.

    Attributes:
        uncompiled: what of it a compiled step cannot run, in words; empty: the step may be.
    """

    uncompiled: str = ""

    def extend(self, network: nn.Module) -> None:
        """Add modules that are trained with the network and saved in its checkpoints.

        `cloze.model.families.models.TRAINING_MODULES` has their names.
        """

    def module(
        self, network: nn.Module, precision: Precision, device_type: str
    ) -> PretrainModule | None:
        """Return the trained module in place of the objectives' own; None: theirs."""
        return None

    def save(self, build: BuildContext, network: nn.Module) -> dict[str, Any]:
        """Save what was trained beside the model; return its entries of the summary."""
        return {}


class Distillation(Companion):
    """A teacher's share in a training: a projection, if states of another width are compared."""

    def __init__(self, teacher: Teacher, student: ModelConfig, names: Collection[str]) -> None:
        self._models, self._names = (student, teacher.model), names
        self.uncompiled = "a teacher's states" if RECORDED & set(names) else ""

    def extend(self, network: nn.Module) -> None:
        add_projection(network, *self._models, self._names)


def load_companions(
    config: PretrainConfig,
    build: BuildContext,
    model: ModelConfig,
    info: DatasetInfo,
    pieces: str,
    names: Collection[str],
) -> list[Companion]:
    """Return the companions that config and inputs name, without the teacher.

    Args:
        model: the trained model.
        pieces: tokenizer directory of the dataset.
        names: names of the objectives.
    """
    loads = [resolve_name(kind.load) for kind in COMPANIONS.loaded().values() if kind.load]
    found = [load(config, build, model, info, pieces, names) for load in loads]
    return [companion for companion in found if companion is not None]
