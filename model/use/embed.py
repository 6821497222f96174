"""A checkpoint in memory that gives texts vectors, and the verb embed over it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from model import checkpoint
from model.data.batch import move
from model.data.layouts import layout_for
from model.data.prefetch import prefetched
from model.families.models import restore_backbone
from model.tasks.contrastive import BiEncoder, Pooling
from model.tasks.encode import encode
from model.train.precision import DTYPES, Precision, autocast
from model.use.embed_stage import EmbedConfig
from model.use.requests import Request
from model.use.serve import Verb
from pipeline import tokenizer
from pipeline.core import storage
from pipeline.core.errors import DataError, UsageError

Vectors = npt.NDArray[np.float32]

TOKENS = {"cpu": 4096, "cuda": 65536}  # of a batch
TEXTS = 8192  # that are cut into pieces at once
HEAD = "embedding"  # of a checkpoint that was tuned for retrieval


class Embedder:
    """A checkpoint that gives texts vectors: one tuned for retrieval as it was tuned to, any other one as is asked for.

    Args:
        path: a checkpoint, or the artifact that holds it.
        pooling: `mean`, `first` or `pooler`; None: the checkpoint's own, mean where it says none.
        normalize: whether vectors get length 1; None: the checkpoint's own, no where it says none.
        max_length: the most pieces of a text, special ones included; None: what it was tuned with, or what the model reads.

    Attributes:
        size: D, the width of the vectors.
        pooling, normalize, max_length: as settled.
        truncated: how many texts lost pieces so far.

    Raises:
        UsageError: its pooler is asked for and was never trained, or it reads no rows as long as that.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        precision: Precision = "fp32",
        device: torch.device | None = None,
    ) -> None:
        with checkpoint.held(path) as directory:
            loaded = checkpoint.load(directory)
            self._pieces = tokenizer.load(loaded.tokenizer)
        own = loaded.heads.get(HEAD, {})
        longest = loaded.model.max_position_embeddings
        self.pooling: Pooling = pooling or own.get("pooling", "mean")
        self.normalize = bool(own.get("normalize", False)) if normalize is None else normalize
        self.max_length = max_length or int((loaded.task or {}).get("max_length", longest))
        self.size, self.truncated, self.pieces = loaded.model.hidden_size, 0, 0
        if self.max_length > longest:
            raise UsageError(f"max_length ({self.max_length}) is more than {path} reads ({longest}); use {longest} or less")
        if self.pooling == "pooler" and not any(name.startswith("pooler.") for name in loaded.state):
            raise UsageError(f"pooling (pooler): {path} has no pooler, its training had no use for one; use mean or first")
        encoder, pooler = restore_backbone(loaded.model, loaded.state)
        self._device, self._precision = device or torch.device("cpu"), precision
        self._network: nn.Module = BiEncoder(encoder, pooler, self.pooling, self.normalize).to(self._device).eval()
        self.parameters = sum(weight.numel() for weight in self._network.parameters())
        self._layout = layout_for([self._network], self._device, DTYPES[precision])

    def embed(self, texts: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None) -> Vectors:
        """The vectors of the texts, in their order: float32 [n, D].

        Args:
            progress: called with how many texts are done, and how many there are.

        Raises:
            DataError: a text has no words in it.
        """
        found = np.zeros((len(texts), self.size), np.float32)
        progress(0, len(texts))
        for begin in range(0, len(texts), TEXTS):
            part = texts[begin : begin + TEXTS]
            found[begin : begin + len(part)] = self._embed(part, begin)
            progress(begin + len(part), len(texts))
        return found

    def _embed(self, texts: Sequence[str], before: int) -> Vectors:
        for number, text in enumerate(texts, start=before + 1):
            if not text.strip():
                raise DataError(f"text {number} is empty; leave it out")
        samples = encode(texts, None, self._pieces, self.max_length)
        self.truncated += samples.truncated
        self.pieces += int(samples.lengths.sum())
        order = np.argsort(-samples.lengths, kind="stable")
        batches, begin = [], 0
        while begin < len(order):
            size = max(1, TOKENS[self._device.type] // int(samples.lengths[order[begin]]))
            batches.append(order[begin : begin + size])
            begin += size
        found = np.zeros((len(texts), self.size), np.float32)
        with torch.inference_mode(), prefetched((samples.batch(part, self._layout) for part in batches), self._device) as made:
            for part, batch in zip(batches, made, strict=True):
                with autocast(self._precision, self._device.type):
                    vectors = self._network.embed(move(batch, self._device))  # type: ignore[operator]
                found[part] = vectors.float().cpu().numpy()
        return found


class Embed(Verb[str]):
    """The verb: each text with its vector; or all vectors in one file."""

    def __init__(self, checkpoint: str, config: EmbedConfig) -> None:
        self._embedder = Embedder(checkpoint, pooling=config.pooling, normalize=config.normalize, max_length=config.max_length)
        self._npy, self._kept = config.npy, list[Vectors]()

    def read(self, request: Request) -> str:
        text = request.text("text")
        if not text.strip():
            raise request.fault("is empty; write something")
        return text

    def answer(self, group: Sequence[str]) -> list[dict[str, Any]]:
        vectors = self._embedder.embed(group)
        if self._npy is not None:
            self._kept.append(vectors)
            return [{} for _ in group]
        return [{"text": text, "embedding": vector.tolist()} for text, vector in zip(group, vectors, strict=True)]

    def finish(self) -> dict[str, Any]:
        embedder = self._embedder
        if self._npy is not None:
            content = io.BytesIO()
            np.save(content, np.concatenate([np.zeros((0, embedder.size), np.float32), *self._kept]))
            storage.write_bytes(self._npy, content.getvalue())
        told = {"size": embedder.size, "pooling": embedder.pooling, "normalize": embedder.normalize}
        return {**told, "truncated": embedder.truncated}
