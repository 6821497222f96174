"""Attention maps of texts: the pipeline, and the command attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.core.humanize import an
from cloze.labs.inside.stages import AttentionConfig
from cloze.model import checkpoint
from cloze.model.data.batch import move
from cloze.model.families.config import prediction_objectives
from cloze.model.families.models import load_backbone
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.layout import BatchLayout
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.train.precision import Precision, autocast, place, placement
from cloze.model.use.request import Request, shortened
from cloze.model.use.verb import Verb
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

DIGITS = 4  # of a weight in an answer
UNLIMITED = 1 << 40  # tokens
MAX_WEIGHTS = 1 << 25  # of an answer of the command; in Python there is no limit


class AttentionReader:
    """Encoder of a checkpoint, which reads as in its training and records its attention maps.

    Attributes:
        longest: maximum number of tokens.
        causal: its only objective was clm, so every token sees the earlier ones alone.
        heads: largest number of heads of a layer.

    Raises:
        UsageError: the family's encoder records no attention maps.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        loaded, self.pieces = checkpoint.load_with_tokenizer(path)
        encoder, _ = load_backbone(loaded.model, loaded.state)
        attentions = [module for module in encoder.modules() if isinstance(module, SelfAttention)]
        if not attentions or not isinstance(encoder, Encoder):
            raise UsageError(
                f"{path} is {an(loaded.model.family)} model, whose encoder records no attention "
                f"maps; use another family"
            )
        self.path, self.encoder = path, encoder.to(device).eval()
        self.longest = loaded.model.max_position_embeddings
        self.causal = prediction_objectives(loaded.heads) == ("clm",)
        self.heads = max(attention.num_heads for attention in attentions)

    def read(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        real: Tensor,
        maps: list[Tensor],
        layout: BatchLayout | None = None,
    ) -> None:
        """Run the encoder and append each layer's maps, float [B, N, L, L], to `maps`.

        Args:
            input_ids, token_type_ids: int64 [B, L].
            real: bool [B, L], true at tokens.
            layout: layout of packed rows. None: one sequence per row.
        """
        if layout is None:
            layout = self.encoder.rows(input_ids, real, token_type_ids)
        if self.causal:
            causal = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
            layout = replace(layout, causal=causal)
        layout = replace(layout, maps=maps)
        with torch.inference_mode():
            self.encoder.run(
                self.encoder.embeddings(input_ids, token_type_ids, layout.positions), layout
            )


def token_text(pieces: Tokenizer, token: int) -> str:
    """Return a token for people; that of a byte-level BPE is decoded, and keeps its space."""
    if pieces.kind == "bpe" and token not in pieces.special.ids:
        return str(pieces.backend.decode([token], skip_special_tokens=False))
    return str(pieces.backend.id_to_token(token))


class AttentionPipeline(AttentionReader):
    """Checkpoint that returns its attention maps."""

    def __init__(
        self, path: str, *, precision: Precision = "fp32", device: torch.device | None = None
    ) -> None:
        self._precision, self._device = precision, device or torch.device("cpu")
        super().__init__(path, self._device)
        place(self.encoder, self._device, precision)

    def encode(self, text: str, pair: str | None = None) -> TextSamples:
        """Tokenize a text, or a pair in the tokenizer's frame; the result has one sample.

        Raises:
            UsageError: a text is empty, or the sequence is longer than the model reads.
        """
        for name, content in (("text", text), ("pair", pair)):
            if content is not None and not content.strip():
                raise UsageError(f"the {name} is empty; write something")
        pairs = None if pair is None else [pair]
        samples = encode([text], pairs, self.pieces, UNLIMITED)
        length = len(samples.sequences[0])
        if length > self.longest:
            raise UsageError(
                f"the text {shortened(text)!r} has {length:,} tokens, special tokens included, "
                f"and {self.path} reads {self.longest:,}; shorten it"
            )
        return samples

    def attend(self, samples: TextSamples) -> dict[str, Any]:
        """Return the attention within what `encode` returned.

        Returns:
            `tokens`: L tokens as the model reads them, special tokens included.
            `second`: position of the first token of the second text; L without one.
            `maps`: float32 [N, L, L] of each layer, probabilities by attending and attended token.
        """
        batch, maps = move(samples.batch([0]), self._device), list[Tensor]()
        with autocast(self._precision, self._device.type):
            self.read(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"], maps)
        tokens = samples.sequences[0].tolist()
        return {
            "tokens": [token_text(self.pieces, token) for token in tokens],
            "second": int(samples.second[0]),
            "maps": [layer[0].float().cpu().numpy() for layer in maps],
        }


class ShowAttention(Verb[TextSamples]):
    """Predictor of attention: `tokens`, `second` and `maps`, see `AttentionPipeline`."""

    group_size = 8  # an answer has a number for each layer, head and pair of tokens

    def __init__(self, checkpoint: str, config: AttentionConfig) -> None:
        options = placement(config.device, config.precision)
        self._pipeline = AttentionPipeline(checkpoint, **options)

    def read(self, request: Request) -> TextSamples:
        with request.blamed():
            samples = self._pipeline.encode(request.text("text"), request.optional("pair"))
        length, reader = len(samples.sequences[0]), self._pipeline
        weights = length**2 * reader.heads * len(reader.encoder.layers)
        if weights > MAX_WEIGHTS:
            raise request.error(
                f"has {length:,} tokens, so {weights:,} weights; shorten "
                f"it, or use cloze.load(...).attention in Python"
            )
        return samples

    def answer(self, encoded: Sequence[TextSamples]) -> list[dict[str, Any]]:
        answers = [self._pipeline.attend(samples) for samples in encoded]
        for answer in answers:
            maps = (layer.astype(np.float64) for layer in answer["maps"])
            answer["maps"] = [np.round(layer, DIGITS).tolist() for layer in maps]
        return answers
