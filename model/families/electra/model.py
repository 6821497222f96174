"""ELECTRA (Clark et al., 2020): a small generator fills masks, the encoder detects replaced tokens.

The encoder is the discriminator; fine-tuning and export keep it. The generator is a masked language
model that shares the discriminator's embeddings (section 3.2). The discriminator's gradient reaches
the generator only through these embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.model.families.bert import model as bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.electra.config import ElectraConfig
from cloze.model.families.models import encoded
from cloze.model.layers.elementwise import ACTIVATIONS
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import MaskedLMHead, Pooler, initialize
from cloze.model.layers.kv_cache import overlay

HELDOUT_SEED = 0  # seed of the generator's samples in evaluation, equal at every evaluation


class Discriminator(nn.Module):
    """Replaced-token logits: dense layer, activation, projection.

    Source: google-research/electra, run_pretraining.py, `_get_discriminator_output`.
    """

    def __init__(self, hidden_size: int, activation: str) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [B, L, D] to [B, L]."""
        logits: Tensor = self.output(self.activation(self.dense(hidden))).squeeze(-1)
        return logits


class ProjectedEmbeddings(nn.Module):
    """Another encoder's embeddings with an own projection."""

    def __init__(self, owner: Embeddings, projection: nn.Module) -> None:
        super().__init__()
        self._owner = (owner,)  # a tuple, so that torch does not register it
        self.projection = projection

    @property
    def word(self) -> nn.Embedding:
        return self._owner[0].word

    def forward(self, *inputs: Any) -> Tensor:
        projected: Tensor = self.projection(self._owner[0].unprojected(*inputs))
        return projected


class Generator(nn.Module):
    """Masked language model."""

    def __init__(self, encoder: Encoder, masked_lm: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.masked_lm = masked_lm

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return logits [M, V] at the masked positions."""
        masked = encoded(self.encoder, batch["input_ids"], batch, batch["masked_positions"])
        logits: Tensor = self.masked_lm(masked, self.encoder.embeddings.word.weight)
        return logits


class Electra(nn.Module):
    """Generator and discriminator; `encoder` is the discriminator's.

    Attributes:
        reads_logits: the model samples from its own logits.
    """

    reads_logits: bool = True

    pooler = None

    def __init__(self, encoder: Encoder, discriminator: nn.Module, generator: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.discriminator = discriminator
        self.generator = generator

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Fill the masks with samples of the generator, and classify every token.

        A batch without labels is not trained on: its tokens are classified unchanged.

        Returns:
            mlm_logits: [M, V], of the generator.
            hidden, rtd_logits: [B, L, D] and [B, L], of the discriminator.
            rtd_labels: bool [B, L], true for replaced tokens; for a batch with labels only.
        """
        outputs = {"mlm_logits": self.generate(batch)}
        ids = batch["input_ids"]
        if "masked_labels" in batch:
            ids = overlay(batch, self._sample(outputs["mlm_logits"]))
            outputs["rtd_labels"] = ids != overlay(batch, batch["masked_labels"])
        outputs["hidden"] = encoded(self.encoder, ids, batch)
        outputs["rtd_logits"] = self.discriminate(outputs["hidden"], batch)
        return outputs

    def generate(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the generator's logits at the masked positions, float [M, V]."""
        logits: Tensor = self.generator(batch)
        return logits

    def discriminate(self, hidden: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the discriminator's logits, float [B, L], from its states [B, L, D]."""
        logits: Tensor = self.discriminator(hidden)
        return logits

    def _sample(self, logits: Tensor) -> Tensor:
        """Sample one token per row of logits from their softmax; int64 [M].

        Uses one random number per row and the cumulative probabilities. The reference program draws
        one number per vocabulary token (Gumbel noise), which takes a CPU longer than the generator
        itself.
        """
        generator = None
        if not self.training:
            generator = torch.Generator(device=logits.device).manual_seed(HELDOUT_SEED)
        summed = logits.detach().float().softmax(dim=-1).cumsum(dim=-1)
        place = (
            torch.rand(len(logits), 1, device=logits.device, generator=generator) * summed[:, -1:]
        )
        return (
            torch.searchsorted(summed, place, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
        )


def new_model(config: ModelConfig) -> Electra:
    """Build the model, initialized from torch's current random state."""
    config = cast(ElectraConfig, config)
    small = config.generator
    encoder = bert.encoder(config, embedding_size=config.embedding_size)
    generator = bert.encoder(small)
    projection = (
        nn.Linear(config.embedding_size, small.hidden_size)
        if small.hidden_size != config.embedding_size
        else nn.Identity()
    )
    generator.embeddings = cast(Embeddings, ProjectedEmbeddings(encoder.embeddings, projection))
    model = Electra(
        encoder,
        Discriminator(config.hidden_size, config.hidden_act),
        Generator(generator, bert.masked_lm(small, config.embedding_size)),
    )
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """Build the pooler: a dense layer and GELU (transformers' `ElectraClassificationHead`)."""
    return Pooler(config.hidden_size, "gelu")
