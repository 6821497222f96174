"""Attention maps of texts: the pipeline, and the command attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloze.core.errors import UsageError
from cloze.model import checkpoint
from cloze.model.analyze.attention_stage import AttentionConfig
from cloze.model.families.models import load_backbone
from cloze.model.layers.encoder import Encoder
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.train.precision import Precision, autocast, placement
from cloze.model.use.request import Request, shortened
from cloze.model.use.verb import Verb
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

DIGITS = 4  # of a weight in an answer
UNLIMITED = 1 << 40  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAttention:
    """Attention of a model within one sequence.

    Attributes:
        tokens: L tokens as the model reads them, special tokens included.
        second: position of the first token of the second text; L without one.
        maps: float32 [layers, N, L, L], probabilities by attending and by attended token.
    """

    tokens: tuple[str, ...]
    second: int
    maps: npt.NDArray[np.float32]


def load_encoder(path: str) -> tuple[Encoder, Tokenizer, int]:
    """Load a checkpoint's encoder, its tokenizer and its maximum number of tokens.

    Args:
        path: checkpoint, pretrained or fine-tuned, or an artifact that contains one.

    Raises:
        UsageError: the family's encoder records no attention maps.
        DataError: the checkpoint is missing or damaged.
    """
    with checkpoint.resolve_pinned(path) as directory:
        loaded = checkpoint.load(directory)
        pieces = tokenizer.load(loaded.tokenizer)
    encoder, _ = load_backbone(loaded.model, loaded.state)
    if not isinstance(encoder, Encoder):
        raise UsageError(
            f"{path} is a {loaded.model.family} model, whose encoder records no attention maps; "
            f"use another family"
        )
    return encoder.eval(), pieces, loaded.model.max_position_embeddings


def token_text(pieces: Tokenizer, token: int) -> str:
    """Return a token for people; that of a byte-level BPE is decoded, and keeps its space."""
    if pieces.kind == "bpe" and token not in pieces.special.ids:
        return str(pieces.backend.decode([token], skip_special_tokens=False))
    return str(pieces.backend.id_to_token(token))


class AttentionPipeline:
    """Checkpoint that returns its attention maps; arguments and errors as `load_encoder`."""

    def __init__(
        self, path: str, *, precision: Precision = "fp32", device: torch.device | None = None
    ) -> None:
        self._path, self._precision = path, precision
        self._device = device or torch.device("cpu")
        encoder, self._pieces, self._longest = load_encoder(path)
        self._encoder = encoder.to(self._device)

    def encode(self, text: str, pair: str | None = None) -> TextSamples:
        """Tokenize a text, or a pair in the tokenizer's frame; the result has one sample.

        Raises:
            UsageError: a text is empty, or the sequence is longer than the model reads.
        """
        for name, content in (("text", text), ("pair", pair)):
            if content is not None and not content.strip():
                raise UsageError(f"the {name} is empty; write something")
        pairs = None if pair is None else [pair]
        samples = encode([text], pairs, self._pieces, UNLIMITED)
        length = len(samples.sequences[0])
        if length > self._longest:
            raise UsageError(
                f"the text {shortened(text)!r} has {length:,} tokens, special tokens included, "
                f"and {self._path} reads {self._longest:,}; shorten it"
            )
        return samples

    def attend(self, samples: TextSamples) -> TextAttention:
        """Return the attention maps of what `encode` returned."""
        batch = samples.batch([0])
        with torch.inference_mode(), autocast(self._precision, self._device.type):
            maps = self._encoder.attention_maps(
                batch["input_ids"].to(self._device),
                batch["attention_mask"].to(self._device),
                batch["token_type_ids"].to(self._device),
            )
        tokens = samples.sequences[0].tolist()
        return TextAttention(
            tokens=tuple(token_text(self._pieces, token) for token in tokens),
            second=int(samples.second[0]),
            maps=torch.stack([layer[0].float().cpu() for layer in maps]).numpy(),
        )


class ShowAttention(Verb[TextSamples]):
    """Predictor of attention: `tokens`, `second` and `maps`, see `TextAttention`."""

    group_size = 8  # an answer has a number for each layer, head and pair of tokens

    def __init__(self, checkpoint: str, config: AttentionConfig) -> None:
        options = placement(config.device, config.precision)
        self._pipeline = AttentionPipeline(checkpoint, **options)

    def read(self, request: Request) -> TextSamples:
        with request.blamed():
            return self._pipeline.encode(request.text("text"), request.optional("pair"))

    def answer(self, encoded: Sequence[TextSamples]) -> list[dict[str, Any]]:
        attentions = map(self._pipeline.attend, encoded)
        return [
            {
                "tokens": list(attention.tokens),
                "second": attention.second,
                "maps": np.round(attention.maps.astype(np.float64), DIGITS).tolist(),
            }
            for attention in attentions
        ]
