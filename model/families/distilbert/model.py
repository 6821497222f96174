"""DistilBERT (Sanh et al., 2019): BERT without segments, initialized with layers of a teacher."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cloze.model.families.bert import model as bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel
from cloze.model.layers.heads import Pooler, initialize

_POSITION = "encoder.embeddings.position.weight"


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the model, initialized from torch's current random state."""
    model = PretrainingModel(bert.encoder(config), bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """Build the pooler: a dense layer and ReLU (transformers' `pre_classifier`)."""
    return Pooler(config.hidden_size, "relu")


def first_weights(
    config: ModelConfig, teacher: ModelConfig, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a student's initial weights: "one layer out of two" of the teacher (section 2).

    Student layer i is teacher layer i * T // S, for T and S layers. Embeddings and the LM head are
    copied if the teacher has them. The teacher must be of a family with BERT's layer names.

    Returns:
        Clones of the teacher's tensors whose name and shape fit; empty if widths differ.
    """
    if (config.hidden_size, config.intermediate_size) != (
        teacher.hidden_size,
        teacher.intermediate_size,
    ):
        return {}
    found = {
        name: tensor for name, tensor in state.items() if not name.startswith("encoder.layers.")
    }
    for number in range(config.num_hidden_layers):
        prefix = f"encoder.layers.{number * teacher.num_hidden_layers // config.num_hidden_layers}."
        layer = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
        found |= {f"encoder.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    if _POSITION in found:  # teachers with relative positions have no table
        offset = len(found[_POSITION]) - teacher.max_position_embeddings
        found[_POSITION] = found[_POSITION][offset : offset + config.max_position_embeddings]
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in new_model(config).state_dict().items()}
    return {
        name: tensor.clone() for name, tensor in found.items() if wanted.get(name) == tensor.shape
    }
