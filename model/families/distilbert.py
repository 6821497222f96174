"""DistilBERT (Sanh et al., 2019): BERT without segments and pooler, that begins as every other layer of a teacher."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from model.config import ModelConfig
from model.families import bert
from model.families.pretraining import PretrainingModel
from model.layers.heads import Pooler, initialize

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def build(config: ModelConfig) -> PretrainingModel:
    """The model of the given sizes, initialised from torch's current random state."""
    model = PretrainingModel(bert.encoder(config), bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model


def pooler(config: ModelConfig) -> Pooler:
    """What stands before the classifier: a dense layer and ReLU (transformers, modeling_distilbert.py, `pre_classifier`)."""
    return Pooler(config.hidden_size, "relu")


def from_teacher(config: ModelConfig, teacher: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A student's first weights (section 2: "initialize the student from the teacher by taking one layer out of two").

    Student layer i is teacher layer i * T // S, of T and S layers: 0, 2, 4, … for half as many. Embeddings and the LM head come
    along. The teacher must be as wide, and of a family that names its layers as BERT does.

    Returns:
        What the teacher has of the student's parameters, cloned; empty where their widths differ.
    """
    if (config.hidden_size, config.intermediate_size) != (teacher.hidden_size, teacher.intermediate_size):
        return {}
    offset = state["encoder.embeddings.position.weight"].shape[0] - teacher.max_position_embeddings
    found = {}
    for name, tensor in state.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            found[name] = tensor
    for number in range(config.num_hidden_layers):
        source = number * teacher.num_hidden_layers // config.num_hidden_layers
        prefix = f"encoder.layers.{source}."
        found |= {
            f"encoder.layers.{number}.{name.removeprefix(prefix)}": t for name, t in state.items() if name.startswith(prefix)
        }
    position = "encoder.embeddings.position.weight"
    found[position] = found[position][offset : offset + config.max_position_embeddings]
    wanted = build_names(config)
    return {name: tensor.clone() for name, tensor in found.items() if wanted.get(name) == tensor.shape}


def build_names(config: ModelConfig) -> dict[str, object]:
    """The student's parameters and their shapes."""
    import torch

    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in build(config).state_dict().items()}
