"""Embeddings of texts, and of their words in context; several labs read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.core.ragged import I64
from cloze.labs.word_vectors import LayerMean, Span, word_means, words_of, words_of_tokens
from cloze.model import checkpoint
from cloze.model.data.batch import Prefetch, move, pin
from cloze.model.data.layouts import LayoutKind, layout_for
from cloze.model.families.models import load_backbone
from cloze.model.families.pretraining import encode as encode_batch
from cloze.model.layers.batch import Batch
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import mean_state
from cloze.model.tasks.encode import TextSamples, encode, evaluation_batches, framed
from cloze.model.train.device_scalars import read_async
from cloze.model.train.precision import DTYPES, Precision, autocast, place

Vectors = npt.NDArray[np.float32]

CPU_TOKENS, GPU_TOKENS = 4096, 65536  # per batch, padding included
TEXTS = 8192  # texts tokenized at once
EMBEDDING_HEAD = "embedding"  # head of a checkpoint trained for retrieval

Pooling = Literal["mean", "first", "pooler"]


def pooled(hidden: Tensor, attention_mask: Tensor, pooling: Pooling, pooler: nn.Module) -> Tensor:
    """Pool to one vector per row, fp32 [B, D].

    Args:
        hidden: float [B, L, D]; values at padding are ignored.
        attention_mask: bool [B, L].
        pooling: `mean` of all tokens' states, special tokens included, as in sentence-transformers
            (Reimers and Gurevych 2019); `first` token; or the checkpoint's `pooler`.
    """
    if pooling == "pooler":
        vectors: Tensor = pooler(hidden, attention_mask)
        return vectors.float()
    if pooling == "first":
        return hidden[:, 0].float()
    return mean_state(hidden.float(), attention_mask)


class BiEncoder(nn.Module):
    """Encoder and pooling; the pooler stays in the checkpoint even if unused."""

    def __init__(
        self, encoder: nn.Module, pooler: nn.Module, pooling: Pooling, normalize: bool
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self._pooling: Pooling = pooling
        self._normalize = normalize

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the vectors of queries [Q, D] and passages [P, D], fp32."""
        vectors = self.embed(batch)
        queries = batch["allowed"].shape[0]
        return vectors[:queries], vectors[queries:]

    def embed(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the vectors of all rows, fp32 [B, D], for a batch of `TextSamples`."""
        hidden = encode_batch(self.encoder, batch["input_ids"], batch)
        vectors = pooled(hidden, batch["attention_mask"], self._pooling, self.pooler)
        return nn.functional.normalize(vectors, dim=-1) if self._normalize else vectors


class EmbeddingPipeline:
    """Checkpoint that computes text embeddings, by default as it was fine-tuned for retrieval.

    Args:
        path: checkpoint, or an artifact that contains one.
        pooling: `mean`, `first` or `pooler`; None: the checkpoint's own, else mean.
        normalize: scale vectors to length 1; None: the checkpoint's own, else no.
        max_length: maximum tokens per text, special tokens included; None: that of fine-tuning,
            else the model's.
        layers: layers whose mean state replaces the last one's, see `LayerMean`.

    Attributes:
        size: D, width of the vectors.
        pooling, normalize, max_length: resolved values of the arguments.
        truncated: number of texts truncated so far.

    Raises:
        UsageError: the pooler is not trained, or `max_length` exceeds the model's.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        layers: Sequence[int] = (),
        precision: Precision = "fp32",
        device: torch.device | None = None,
    ) -> None:
        loaded, self._pieces = checkpoint.load_with_tokenizer(path)
        head_options = loaded.heads.get(EMBEDDING_HEAD, {})
        longest = loaded.model.max_position_embeddings
        self.pooling: Pooling = pooling or head_options.get("pooling", "mean")
        own_normalize = bool(head_options.get("normalize", False))
        self.normalize = own_normalize if normalize is None else normalize
        self.max_length = max_length or int((loaded.task or {}).get("max_length", longest))
        self.size, self.truncated, self.pieces = loaded.model.hidden_size, 0, 0
        if self.max_length > longest:
            raise UsageError(
                f"max_length ({self.max_length}) is more than {path} reads ({longest}); use "
                f"{longest} or less"
            )
        has_pooler = any(name.startswith("pooler.") for name in loaded.state)
        if self.pooling == "pooler" and not has_pooler:
            raise UsageError(
                f"pooling (pooler): {path} has no pooler, its training had no use for one; use "
                f"mean or first"
            )
        if self.pooling == "pooler":
            loaded.require_trained("pooler")
        encoder, pooler = load_backbone(loaded.model, loaded.state)
        if layers:
            assert isinstance(encoder, Encoder)
            encoder = LayerMean(encoder, layers)
        self._device, self._precision = device or torch.device("cpu"), precision
        network = BiEncoder(encoder, pooler, self.pooling, self.normalize).eval()
        self._network: nn.Module = place(network, self._device, precision)
        self.parameters = sum(weight.numel() for weight in self._network.parameters())
        layout = layout_for([self._network], self._device, DTYPES[precision])
        self._layout: LayoutKind = "rows" if layers else layout

    def embed(
        self, texts: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Vectors:
        """Return the embeddings of the texts, float32 [n, D].

        Args:
            progress: called with the number of finished texts and of all texts.

        Raises:
            DataError: a text has no words.
        """
        return self.embed_encoded(self._encoded(texts), len(texts), progress)

    def embed_encoded(
        self,
        encoded: Iterable[tuple[int, TextSamples]],
        count: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Vectors:
        """Return the embeddings of `count` texts; each part begins with the number of its first."""
        embeddings, done = np.zeros((count, self.size), np.float32), 0
        progress(0, count)
        with (
            torch.inference_mode(),
            autocast(self._precision, self._device.type),
            Prefetch(encoded, depth=1) as samples,
            Prefetch(self._batches(samples)) as batches,
        ):
            results = (
                (indices, [self._network.embed(move(batch, self._device))])  # type: ignore[operator]
                for indices, batch in batches
            )
            for indices, (vectors,) in read_async(results):
                embeddings[indices] = vectors
                done += len(indices)
                progress(done, count)
        return embeddings

    def embed_words(self, texts: Sequence[str]) -> list[list[tuple[Span, Vectors]]]:
        """Return the words of each text and their vectors, float32 [D]: means of their tokens.

        Words are those of the command tag. A word beyond `max_length` has no vector.
        """
        spans = [words_of(text) for text in texts]
        encoded = self._pieces.encode_with_offsets(texts)
        samples = framed([ids for ids, _ in encoded], None, self._pieces, self.max_length)
        self.truncated += samples.truncated
        found: list[list[tuple[Span, Vectors]]] = [[] for _ in texts]
        encoder, start = self._network.get_submodule("encoder"), len(self._pieces.special.begins)
        with torch.inference_mode(), autocast(self._precision, self._device.type):
            for indices, batch in self._batches([(0, samples)]):
                batch = move(batch, self._device)
                hidden = encode_batch(encoder, batch["input_ids"], batch).float()
                for row, index in enumerate(indices.tolist()):
                    end = int(samples.lengths[index]) - 1  # [SEP]
                    words = words_of_tokens(spans[index], encoded[index][1][: end - start])
                    count = int(words.max(initial=-1)) + 1
                    tokens = torch.from_numpy(words).to(self._device)
                    means = word_means(hidden[row, start:end], tokens, count)
                    if self.normalize:
                        means = nn.functional.normalize(means, dim=-1)
                    found[index] = list(zip(spans[index], means.cpu().numpy(), strict=False))
        return found

    def _encoded(self, texts: Sequence[str]) -> Iterator[tuple[int, TextSamples]]:
        """Tokenize `TEXTS` texts at a time; each result begins with the number of its first."""
        for begin in range(0, len(texts), TEXTS):
            chunk = texts[begin : begin + TEXTS]
            empty = next((number for number, text in enumerate(chunk) if not text.strip()), None)
            if empty is not None:
                raise DataError(f"text {begin + empty + 1} is empty; leave it out")
            yield begin, self.encode(chunk)

    def encode(self, texts: Sequence[str]) -> TextSamples:
        """Tokenize texts; count tokens and truncated texts."""
        samples = encode(texts, None, self._pieces, self.max_length)
        self.truncated += samples.truncated
        self.pieces += int(samples.lengths.sum())
        return samples

    def _batches(self, encoded: Iterable[tuple[int, TextSamples]]) -> Iterator[tuple[I64, Batch]]:
        positions = CPU_TOKENS if self._device.type == "cpu" else GPU_TOKENS
        for begin, samples in encoded:
            for indices in evaluation_batches(samples.lengths, positions):
                yield begin + indices, pin(samples.batch(indices, self._layout), self._device)
