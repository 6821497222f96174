"""What the stage vectors does, once torch is there: read a corpus shard by shard, embed its documents, write their vectors.

Each rank does every so many-th shard. A shard's batches are of its own texts, so its vectors are the same on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from model.train.distributed import join
from model.train.precision import resolve
from model.use.embed import Embedder, Vectors
from model.use.vectors_config import VectorsConfig
from pipeline.core import storage, unit_vectors
from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.core.errors import DataError, UsageError
from pipeline.core.stage import Build, Outcome

CHARACTERS = 4  # of a piece, about; a window that has more pieces than the model reads loses its end


def run(config: VectorsConfig, build: Build) -> Outcome:
    """Embed every document of the corpus, on each rank its shards.

    Raises:
        UsageError: the model's vectors are too wide, or it reads no windows as long as that.
        DataError: there is no corpus or no checkpoint.
    """
    path = build.inputs["corpus"]
    names = sorted(name for name in storage.list_files(path) if name.startswith("corpus-") and name.endswith(".arrow"))
    if not names:
        raise DataError(f"{path} holds no corpus (no file corpus-*.arrow); name the artifact that `cloze corpus` made")
    world = join(build.execution)
    kind = resolve(config.precision, world.device)
    embedder = Embedder(
        build.inputs["checkpoint"],
        pooling=config.pooling,
        normalize=True,
        max_length=config.max_length,
        precision=kind,
        device=world.device,
    )
    if embedder.size > unit_vectors.WIDEST:
        raise UsageError(f"the model's vectors have {embedder.size} numbers; take one of at most {unit_vectors.WIDEST}")
    documents = 0
    own = names[world.rank :: world.size]
    for number, name in enumerate(own):
        build.report.progress(min(number * world.size, len(names)), len(names), "shards", {})
        target = build.file(unit_vectors.file_name(name))
        table = read_arrow(storage.join(path, name))
        documents += table.num_rows
        if storage.exists(target):  # of a try that was interrupted
            continue
        keys = table["key"].to_numpy()
        order = np.argsort(keys, kind="stable")
        texts = [" ".join(sentences) for sentences in table["sentences"].take(pa.array(order)).to_pylist()]
        found = unit_vectors.units(_vectors(embedder, texts, config.windows))
        batch = unit_vectors.batch(keys[order], found)
        write_arrow(target, batch.schema, [batch])
    documents, truncated, pieces = world.total([documents, embedder.truncated, embedder.pieces])
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
        "precision": kind,
    }
    return Outcome(rows=documents, tokens=pieces, summary=summary)


def _vectors(embedder: Embedder, texts: Sequence[str], most: int) -> Vectors:
    """fp32 [n, D]: the mean of each text's windows; of a text without words 0."""
    windows, owners = list[str](), list[int]()
    for number, text in enumerate(texts):
        own = windows_of(text, CHARACTERS * embedder.max_length, most)
        windows += own
        owners += [number] * len(own)
    found = np.zeros((len(texts), embedder.size), np.float32)
    if windows:
        np.add.at(found, np.array(owners), embedder.embed(windows))
    return found


def windows_of(text: str, length: int, most: int) -> list[str]:
    """The first `most` pieces of a text of about equal length, at most `length` characters each and a word; none without words."""
    text = text[: most * length].strip()
    count = max(1, -(-len(text) // length))
    edges = [0]
    for number in range(1, count):
        at = text.find(" ", number * len(text) // count)
        edges.append(len(text) if at < 0 else at)
    pieces = (text[begin:end].strip() for begin, end in zip(edges, [*edges[1:], len(text)], strict=True))
    return [piece for piece in pieces if piece]
