"""ELECTRA (Clark et al., 2020): a small generator fills the masks, the encoder tells which tokens it replaced.

The encoder is the discriminator; it is what fine-tuning and export keep. The generator is a masked language model that
shares the discriminator's embeddings (section 3.2), and no gradient of the discriminator's reaches it but through these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.families.bert import model as bert
from model.families.config import ModelConfig
from model.families.electra.config import ElectraConfig
from model.families.pretraining import encoded
from model.layers.activation import ACTIVATIONS
from model.layers.embeddings import Embeddings
from model.layers.encoder import Encoder
from model.layers.heads import MaskedLMHead, Pooler, initialize
from model.layers.unmask import overlay

HELDOUT_SEED = 0  # of what the generator puts in while scoring: the same at every evaluation


class Discriminator(nn.Module):
    """One logit a token: was it replaced? A dense layer, an activation, and a vector (google-research/electra,
    run_pretraining.py, `_get_discriminator_output`).
    """

    def __init__(self, hidden_size: int, activation: str) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, L, D] to [B, L]."""
        logits: Tensor = self.output(self.activation(self.dense(hidden))).squeeze(-1)
        return logits


class BorrowedEmbeddings(nn.Module):
    """Another encoder's embeddings with a projection of one's own."""

    def __init__(self, owner: Embeddings, projection: nn.Module) -> None:
        super().__init__()
        self._owner = (owner,)  # in a tuple, where torch does not register it
        self.projection = projection

    @property
    def word(self) -> nn.Embedding:
        return self._owner[0].word

    def forward(self, *inputs: Any) -> Tensor:
        projected: Tensor = self.projection(self._owner[0].unprojected(*inputs))
        return projected


class Generator(nn.Module):
    """A masked language model."""

    def __init__(self, encoder: Encoder, masked_lm: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.masked_lm = masked_lm

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Logits [M, V] at the masked positions."""
        masked = encoded(self.encoder, batch["input_ids"], batch, batch["masked_positions"])
        logits: Tensor = self.masked_lm(masked, self.encoder.embeddings.word.weight)
        return logits


class Electra(nn.Module):
    """Generator and discriminator. `encoder` is the discriminator's.

    Attributes:
        reads_logits: whether it reads the logits that it gives: it draws from them.
    """

    reads_logits: bool = True

    pooler = None

    def __init__(self, encoder: Encoder, discriminator: nn.Module, generator: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.discriminator = discriminator
        self.generator = generator

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Fill the masks from what the generator thinks, and judge every token.

        A batch without labels is not being learnt from: its tokens are judged as they are.

        Returns:
            `mlm_logits` [M, V], the generator's; `hidden` [B, L, D] and `rtd_logits` [B, L], the discriminator's; and, of a batch
            with labels, `rtd_labels` bool [B, L], true where a token is not the one that was there.
        """
        outputs = {"mlm_logits": self.filled(batch)}
        ids = batch["input_ids"]
        if "masked_labels" in batch:
            ids = overlay(batch, self._sample(outputs["mlm_logits"]))
            outputs["rtd_labels"] = ids != overlay(batch, batch["masked_labels"])
        outputs["hidden"] = encoded(self.encoder, ids, batch)
        outputs["rtd_logits"] = self.judged(outputs["hidden"], batch)
        return outputs

    def filled(self, batch: Mapping[str, Any]) -> Tensor:
        """The generator's logits at the masked positions, float [M, V]."""
        logits: Tensor = self.generator(batch)
        return logits

    def judged(self, hidden: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """The discriminator's logits, float [B, L], from its states [B, L, D]."""
        logits: Tensor = self.discriminator(hidden)
        return logits

    def _sample(self, logits: Tensor) -> Tensor:
        """One token a row of logits, drawn from their softmax; int64 [M].

        By where one random number a row falls among the summed probabilities: the reference program draws one for each token of the
        vocabulary (Gumbel noise), which takes a CPU longer than the generator does.
        """
        generator = None
        if not self.training:
            generator = torch.Generator(device=logits.device).manual_seed(HELDOUT_SEED)
        summed = logits.detach().float().softmax(dim=-1).cumsum(dim=-1)
        place = torch.rand(len(logits), 1, device=logits.device, generator=generator) * summed[:, -1:]
        return torch.searchsorted(summed, place, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)


def new_model(config: ModelConfig) -> Electra:
    """The model of the given sizes, initialised from torch's current random state."""
    config = cast(ElectraConfig, config)
    small = config.generator
    encoder = bert.encoder(config, embedding_size=config.embedding_size)
    generator = bert.encoder(small)
    projection = (
        nn.Linear(config.embedding_size, small.hidden_size) if small.hidden_size != config.embedding_size else nn.Identity()
    )
    generator.embeddings = cast(Embeddings, BorrowedEmbeddings(encoder.embeddings, projection))
    model = Electra(
        encoder,
        Discriminator(config.hidden_size, config.hidden_act),
        Generator(generator, bert.masked_lm(small, config.embedding_size)),
    )
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """What stands before the classifier: a dense layer and GELU (transformers, modeling_electra.py, `ElectraClassificationHead`)."""
    return Pooler(config.hidden_size, "gelu")
