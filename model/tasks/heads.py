"""What stands on the encoder in fine-tuning: one linear layer on the pooled output (Devlin et al. 2019, figure 4a, b)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.models import is_backbone, new_backbone, restore_backbone
from pipeline.core import random_keys
from pipeline.core.errors import DataError

_BODY, _HEAD = 1, 2  # independent random streams


class SequenceClassifier(nn.Module):
    """Encoder, pooler, dropout, and `classifier`: hidden states of a sequence to logits of its labels.

    The parameters of encoder and pooler keep their names of pretraining.
    """

    def __init__(self, encoder: nn.Module, pooler: nn.Module, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Logits, fp32 [B, labels], of a batch as `encode.collate` makes it."""
        hidden = self.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], batch.get("layout"))
        logits: Tensor = self.classifier(self.dropout(self.pooler(hidden, batch["attention_mask"])))
        return logits.float()


def new_classifier(
    config: ModelConfig, state: Mapping[str, Tensor] | None, num_labels: int, dropout: float | None, seed: int
) -> SequenceClassifier:
    """A classifier to train: the encoder and pooler of `state`, or random ones where it is None, and a new head.

    The head's weights depend on the seed alone, so a pretrained and a random encoder start under the same one.
    `state` is not changed by training.
    """
    torch.manual_seed(int(random_keys.derive(seed, _BODY)))
    backbone = new_backbone(config) if state is None else restore_backbone(config, _copy(state))
    model = SequenceClassifier(
        backbone.encoder, backbone.pooler, config.hidden_size, num_labels, config.hidden_dropout if dropout is None else dropout
    )
    torch.manual_seed(int(random_keys.derive(seed, _HEAD)))
    nn.init.trunc_normal_(model.classifier.weight, std=config.initializer_range)
    nn.init.zeros_(model.classifier.bias)
    return model


def trained_classifier(config: ModelConfig, state: Mapping[str, Tensor], num_labels: int, where: str) -> SequenceClassifier:
    """The classifier of a fine-tuned checkpoint, in evaluation mode.

    Raises:
        DataError: the checkpoint at `where` has no classifier, or one for another number of labels.
    """
    backbone = restore_backbone(config, _copy(state))
    model = SequenceClassifier(backbone.encoder, backbone.pooler, config.hidden_size, num_labels, 0.0)
    for name, wanted in model.classifier.state_dict(prefix="classifier.").items():
        if name not in state:
            raise DataError(f"{where} has no {name}; name a checkpoint that `cloze finetune` made")
        if state[name].shape != wanted.shape:
            shapes = f"{tuple(state[name].shape)}, its labels ask for {tuple(wanted.shape)}"
            raise DataError(f"{name} in {where} has the shape {shapes}; fine-tune again")
    model.classifier.load_state_dict({name: state[f"classifier.{name}"] for name in ("weight", "bias")})
    return model.eval()


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors, cloned: `restore` takes tensors as they are, and training writes into them."""
    return {name: tensor.clone() for name, tensor in state.items() if is_backbone(name)}
