"""ALBERT (Lan et al., 2020): projected embeddings, parameter sharing, sentence-order prediction."""

from __future__ import annotations

from typing import cast

from torch import nn

from cloze.model.families.albert.config import AlbertConfig
from cloze.model.families.bert import model as bert
from cloze.model.families.bert.model import new_pooler
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel
from cloze.model.layers.disentangled import ModuleReference
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder, EncoderLayer
from cloze.model.layers.heads import initialize

__all__ = ["new_model", "new_pooler"]


class GroupedEncoder(Encoder):
    """Encoder whose layers are repeated references to the layers in `groups`."""

    def __init__(
        self, embeddings: Embeddings, groups: list[list[EncoderLayer]], repeats: int
    ) -> None:
        run = [
            ModuleReference(layer) for group in groups for _ in range(repeats) for layer in group
        ]
        super().__init__(embeddings, run, nn.Identity())
        self.groups = nn.ModuleList([nn.ModuleList(group) for group in groups])


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the model, initialized from torch's current random state."""
    config = cast(AlbertConfig, config)
    size = config.embedding_size
    embeddings = Embeddings(
        config.vocab_size,
        size,
        max_positions=config.max_position_embeddings,
        segments=config.type_vocab_size,
        norm=nn.LayerNorm(size, eps=config.layer_norm_eps),
        dropout=config.hidden_dropout,
        projection=nn.Linear(size, config.hidden_size),
    )
    model = PretrainingModel(
        _encoder(config, embeddings),
        bert.masked_lm(config, size),
        pooler=new_pooler(config),
        pair=nn.Linear(config.hidden_size, 2),
    )
    initialize(model, config.initializer_range)
    return model


def _encoder(config: AlbertConfig, embeddings: Embeddings) -> Encoder:
    repeats = config.num_hidden_layers // config.num_hidden_groups
    if config.shared == "all":
        groups = [
            [bert.layer(config) for _ in range(config.inner_group_num)]
            for _ in range(config.num_hidden_groups)
        ]
        return GroupedEncoder(embeddings, groups, repeats)
    layers = [bert.layer(config) for _ in range(config.num_hidden_layers)]
    blocks = {
        "attention": ("attention", "attention_norm"),
        "feed-forward": ("feed_forward", "feed_forward_norm"),
        "none": (),
    }
    for number, layer in enumerate(layers):
        owner = layers[number - number % repeats]
        for name in blocks[config.shared] if layer is not owner else ():
            setattr(layer, name, ModuleReference(getattr(owner, name)))
    return Encoder(embeddings, layers, nn.Identity())
