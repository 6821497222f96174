"""Stage vectors, the command `embed-corpus`: embeddings of a corpus, shard by shard."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.errors import UsageError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.core.words import UNSPACED_LETTER, letters_a_word
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.selection.stages import VectorsConfig
from cloze.labs.vectors import WIDEST, quantize, vectors_file_name, write_vectors
from cloze.model.tasks.files import corpus_shards
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve

CHARACTERS = 4  # about, per token; a window with more tokens than the model reads is truncated
_WINDOW_EDGE = re.compile(f" |{UNSPACED_LETTER.pattern}")


def run(config: VectorsConfig, build: BuildContext) -> StageResult:
    """Embed every document of the corpus; each rank processes its own shards.

    Raises:
        UsageError: the vectors are too wide, or the model reads no windows of that length.
        DataError: corpus or checkpoint is missing.
    """
    path = build.inputs["corpus"]
    names = corpus_shards(path)
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    embedder = EmbeddingPipeline(
        build.inputs["checkpoint"],
        pooling=config.pooling,
        normalize=True,
        max_length=config.max_length,
        precision=precision,
        device=world.device,
    )
    if embedder.size > WIDEST:
        raise UsageError(
            f"the model's vectors have {embedder.size} numbers; take one of at most {WIDEST}"
        )
    counts = np.zeros(3, np.int64)
    for number, name in enumerate(names[world.rank :: world.size]):
        build.report.progress(min(number * world.size, len(names)), len(names), "shards", {})
        # Written last, so an interrupted attempt has completed the shard.
        counts_file = storage.join(build.scratch, f"{name}.json")
        if not storage.exists(counts_file):
            target = build.file(vectors_file_name(name))
            shard_counts = _embed_shard(embedder, storage.join(path, name), target, config.windows)
            storage.write_bytes(counts_file, json.dumps(shard_counts).encode())
        counts += json.loads(storage.read_text(counts_file))
    documents, truncated, pieces = world.all_reduce_sum(counts.tolist())
    build.report.progress(len(names), len(names), "shards", {})
    summary = {
        "documents": documents,
        "size": embedder.size,
        "pooling": embedder.pooling,
        "max_length": embedder.max_length,
        "truncated_windows": truncated,
        "tokens": pieces,
        "parameters": embedder.parameters,
        "device": world.device.type,
        "precision": precision,
    }
    return StageResult(rows=documents, tokens=pieces, summary=summary)


def _embed_shard(
    embedder: EmbeddingPipeline, source: str, target: str, max_windows: int
) -> tuple[int, int, int]:
    """Write the vectors of a shard: the mean embedding of a document's windows, 0 without words.

    Returns:
        Numbers of documents, truncated windows and tokens.
    """
    truncated, pieces = embedder.truncated, embedder.pieces
    table = read_arrow(source)
    keys = table["key"].to_numpy()
    order = np.argsort(keys, kind="stable")
    windows, owners = list[str](), list[int]()
    for number, sentences in enumerate(table["sentences"].take(pa.array(order)).to_pylist()):
        own = windows_of(" ".join(sentences), CHARACTERS * embedder.max_length, max_windows)
        windows += own
        owners += [number] * len(own)
    vectors = np.zeros((len(order), embedder.size), np.float32)
    if windows:
        np.add.at(vectors, np.array(owners), embedder.embed(windows))
    write_vectors(target, keys[order], quantize(vectors))
    return table.num_rows, embedder.truncated - truncated, embedder.pieces - pieces


def windows_of(text: str, length: int, count: int) -> list[str]:
    """Split a text into at most `count` windows of about equal length; later text is ignored.

    Windows end between words, or between letters of a script without spaces, and exceed `length`
    characters by at most one word. An ideograph counts as one token's characters, a letter of the
    scripts of South East Asia as half of that.
    """
    text = text[: count * length]
    text = text[: np.searchsorted(_lengths(text), count * length, side="right")].strip()
    lengths = _lengths(text)
    windows = max(1, -(-int(lengths[-1]) // length)) if text else 0
    edges = [0]
    for number in range(1, windows):
        edge = np.searchsorted(lengths, number * lengths[-1] // windows, side="right")
        found = _WINDOW_EDGE.search(text, int(edge))
        edges.append(found.start() if found else len(text))
    pieces = (text[begin:end].strip() for begin, end in itertools.pairwise([*edges, len(text)]))
    return [piece for piece in pieces if piece]


def _lengths(text: str) -> I64:
    """Return the length of the text up to the end of each character, int64 [characters]."""
    letters = letters_a_word()[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    return np.cumsum(np.array([1, 1, CHARACTERS, CHARACTERS // 2])[letters])
