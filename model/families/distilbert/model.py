"""DistilBERT (Sanh et al., 2019): BERT without segments and pooler, that begins as every other layer of a teacher."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from model.families.bert import model as bert
from model.families.config import ModelConfig
from model.families.pretraining import PretrainingModel
from model.layers.heads import Pooler, initialize

_POSITION = "encoder.embeddings.position.weight"


def new_model(config: ModelConfig) -> PretrainingModel:
    """The model of the given sizes, initialised from torch's current random state."""
    model = PretrainingModel(bert.encoder(config), bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """What stands before the classifier: a dense layer and ReLU (transformers, modeling_distilbert.py, `pre_classifier`)."""
    return Pooler(config.hidden_size, "relu")


def first_weights(config: ModelConfig, teacher: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A student's first weights (section 2: "initialize the student from the teacher by taking one layer out of two").

    Student layer i is teacher layer i * T // S, of T and S layers: 0, 2, 4, … for half as many. Embeddings and the LM head come
    along, where the teacher has them. It must be as wide, and of a family that names its layers as BERT does.

    Returns:
        What the teacher has of the student's parameters, cloned; empty where their widths differ.
    """
    if (config.hidden_size, config.intermediate_size) != (teacher.hidden_size, teacher.intermediate_size):
        return {}
    found = {name: tensor for name, tensor in state.items() if not name.startswith("encoder.layers.")}
    for number in range(config.num_hidden_layers):
        prefix = f"encoder.layers.{number * teacher.num_hidden_layers // config.num_hidden_layers}."
        layer = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        found |= {f"encoder.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    if _POSITION in found:  # a teacher of relative positions has none
        offset = len(found[_POSITION]) - teacher.max_position_embeddings
        found[_POSITION] = found[_POSITION][offset : offset + config.max_position_embeddings]
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in new_model(config).state_dict().items()}
    return {name: tensor.clone() for name, tensor in found.items() if wanted.get(name) == tensor.shape}
