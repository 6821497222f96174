"""The command embed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from cloze.core import storage
from cloze.labs.serving.verbs import EmbedConfig
from cloze.model.tasks.encode import TextSamples
from cloze.model.train.precision import placement
from cloze.model.use.embed import EmbeddingPipeline, Vectors
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb


class Embed(Verb[str]):
    """Predictor of embed: each text with its vector, or all vectors in one file."""

    def __init__(self, checkpoint: str, config: EmbedConfig) -> None:
        self._embedder = EmbeddingPipeline(
            checkpoint,
            pooling=config.pooling,
            normalize=config.normalize,
            max_length=config.max_length,
            layers=config.layers,
            **placement(config.device, config.precision),
        )
        self._words = config.word_vectors
        self._file = config.npy and _VectorFile(config.npy, self._embedder.size)

    def read(self, request: Request) -> str:
        return request.text("text")

    def encode(self, group: Sequence[str]) -> tuple[Sequence[str], TextSamples | None]:
        return group, None if self._words else self._embedder.encode(group)

    def answer(self, encoded: tuple[Sequence[str], TextSamples | None]) -> list[dict[str, Any]]:
        texts, samples = encoded
        if samples is None:
            return [
                {
                    "text": text,
                    "words": [
                        {"text": text[start:end], "start": start, "end": end,
                         "embedding": vector.tolist()}
                        for (start, end), vector in words
                    ],
                }
                for text, words in zip(texts, self._embedder.embed_words(texts), strict=True)
            ]  # fmt: skip
        vectors = self._embedder.embed_encoded([(0, samples)], len(texts))
        if self._file:
            self._file.append(vectors)
            return [{} for _ in texts]
        return [
            {"text": text, "embedding": vector.tolist()}
            for text, vector in zip(texts, vectors, strict=True)
        ]

    def finish(self) -> dict[str, Any]:
        embedder = self._embedder
        if self._file:
            self._file.close()
        return {
            "size": embedder.size,
            "pooling": embedder.pooling,
            "normalize": embedder.normalize,
            "truncated": embedder.truncated,
        }


class _VectorFile:
    """NumPy file of float32 [n, D] that grows by rows; `path` appears when it is closed."""

    def __init__(self, path: str, size: int) -> None:
        directory = None
        if storage.is_local(path):
            directory = os.path.dirname(storage.filesystem(path)[1])
            os.makedirs(directory, exist_ok=True)
        self._path, self._size, self._count = path, size, 0
        self._rows = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115, closed with the process

    def append(self, vectors: Vectors) -> None:
        self._rows.write(np.ascontiguousarray(vectors, "<f4").data)
        self._count += len(vectors)

    def close(self) -> None:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self._count, self._size)}
        self._rows.seek(0)
        with storage.atomic_output(self._path) as target:
            np.lib.format.write_array_header_1_0(target, shape)
            shutil.copyfileobj(self._rows, target)
        self._rows.close()
