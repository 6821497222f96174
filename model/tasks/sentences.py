"""What classification and regression share: one sequence, a text or a pair of texts, and one answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks.heads import SequenceClassifier
from model.tasks.options import TaskOptions
from model.tasks.task import Meaning
from pipeline.core.errors import UsageError

HEAD, PAIR_HEAD = "classifier", "pair_classifier"  # the linear layer on the pooled state, and that on `pair_features`
FEATURES = "pair_features"  # of the options, and of a network's meaning


class Texts(Protocol):
    """Texts, or pairs of them."""

    @property
    def where(self) -> str: ...
    @property
    def text_pairs(self) -> Sequence[str] | None: ...


def read_as(options: TaskOptions, train: Texts) -> dict[str, Any]:
    """What a network's meaning says of its texts: whether they are `pairs`, and with `pair_features` compared as such.

    Raises:
        UsageError: features of pairs are asked for, and there are none.
    """
    pairs = train.text_pairs is not None
    if not getattr(options, FEATURES, False):
        return {"pairs": pairs}
    if not pairs:
        raise UsageError(
            f"options.{FEATURES} (true) is for pairs of texts, the examples of {train.where} have one; leave it out"
        )
    return {"pairs": True, FEATURES: True}


def heads(meaning: Meaning, outputs: int) -> dict[str, Any]:
    """What stands on the encoder, as a checkpoint's `heads` says it."""
    return {_head(meaning): {"num_labels": outputs}}


def network(backbone: Backbone, config: ModelConfig, meaning: Meaning, outputs: int, dropout: float) -> SequenceClassifier:
    """The network that gives `outputs` numbers a sequence."""
    return SequenceClassifier(
        backbone.encoder, backbone.pooler, config.hidden_size, outputs, dropout, _head(meaning), bool(meaning.get(FEATURES))
    )


def _head(meaning: Meaning) -> str:
    return PAIR_HEAD if meaning.get(FEATURES) else HEAD
