"""References of invented documents, as the parts' writers leave them: clusters of many shapes,
without any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.arrow import write_arrow
from cloze.pipeline.corpus.files.intermediate import signatures_schema
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.corpus.signatures import SKETCH_BYTES

MINHASH = MinHash(bands=4, rows=4)


@dataclass(frozen=True)
class References:
    """Files of references, and how many documents each has."""

    paths: list[str]
    documents: list[int]
    kinds: list[str]


def invented(
    directory: Path,
    count: int,
    seed: int,
    *,
    parts: int = 5,
    hot: int = 0,
    minhash: MinHash = MINHASH,
    batch: int = 37,
) -> References:
    """Documents that share ids, exact hashes and bands in stars, chains and cliques, across parts
    and within them.

    Args:
        hot: documents that share one band, of which every third is like the others.
    """
    draw = np.random.default_rng(seed)
    key = random_keys.fold_in(seed, np.arange(count))
    exact = (
        random_keys.fold_in(seed, 1, np.arange(count)),
        random_keys.fold_in(seed, 2, np.arange(count)),
    )
    bands = random_keys.fold_in(seed, 3, np.arange(count)[:, None], np.arange(minhash.bands))
    sketch = (
        random_keys.fold_in(seed, 4, np.arange(count)[:, None], np.arange(SKETCH_BYTES))
        % np.uint64(256)
    ).astype(np.uint8)
    characters = draw.integers(40, 60, count).astype(np.uint32)  # many are equally long
    cluster = np.arange(count)  # documents of one have the same text
    at = 0
    while at < count - 40:
        shape, size = draw.integers(0, 6), int(draw.integers(2, 12))
        own = np.arange(at, at + size)
        own = draw.permutation(own)
        cluster[own[::2]] = at
        if shape == 0:  # a chain: each shares a band with the next alone
            for one, other in zip(own[:-1], own[1:], strict=True):
                band = draw.integers(0, minhash.bands)
                bands[other, band] = bands[one, band]
        elif shape == 1:  # a star
            for other in own[1:]:
                band = draw.integers(0, minhash.bands)
                bands[other, band] = bands[own[0], band]
        elif shape == 2:  # a clique
            bands[own] = bands[own[0]]
        elif shape == 3:  # doubles of an id, some of them with the same words
            key[own] = key[own[0]]
            exact[0][own[::2]], exact[1][own[::2]] = exact[0][own[0]], exact[1][own[0]]
        elif shape == 4:  # exact duplicates, and some that agree in half of the hash
            exact[0][own] = exact[0][own[0]]
            exact[1][own[:-1]] = exact[1][own[0]]
            bands[own[0]] = bands[own[-1]]
        else:  # all of it at once
            key[own[1]] = key[own[0]]
            exact[0][own[1:3]], exact[1][own[1:3]] = exact[0][own[1]], exact[1][own[1]]
            bands[own[2:], 0] = bands[own[0], 0]
        if draw.random() < 0.7:  # how like they are
            kept = draw.random((size, SKETCH_BYTES)) < draw.choice([0.5, 0.7, 0.95])
            sketch[own] = np.where(kept, sketch[own[0]], sketch[own])
        at += size + int(draw.integers(0, 6))
    if hot:
        members = draw.choice(count, hot, replace=False)
        bands[members, 1] = bands[members[0], 1]
        sketch[members[::3]] = sketch[members[0]]
    order = draw.permutation(count)
    schema = signatures_schema(minhash, verified=True, mixed=True)
    columns = {
        "key": key, "characters": characters, "bytes": characters * 2,
        "heldout": key % np.uint64(5) == 0,
        "exact_high": exact[0], "exact_low": exact[1], "words": characters // 5,
        "language": (key % np.uint64(2)).astype(np.uint32) + 25,
        **{f"band_{band:02d}": bands[:, band] for band in range(minhash.bands)},
    }  # fmt: skip
    edges = np.sort(draw.integers(0, count + 1, parts - 1))
    paths = []
    for number, own in enumerate(np.split(order, edges)):
        paths.append(str(directory / f"part-{number}.refs.arrow"))
        batches = []
        for begin in range(0, own.size, batch):
            rows = own[begin : begin + batch]
            arrays = [pa.array(columns[name][rows]) for name in schema.names if name != "sketch"]
            arrays.append(
                pa.array([row.tobytes() for row in sketch[rows]], schema.field("sketch").type)
            )
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        write_arrow(paths[-1], schema, batches)
        texts = [[f"c{cluster[row]}w{word}" for word in range(6)] for row in own]
        table = pa.table({"sentences": pa.array(texts, pa.list_(pa.string()))})
        write_arrow(
            paths[-1].replace(".refs", ""), table.schema, table.to_batches(max_chunksize=batch)
        )
    documents = [own.size for own in np.split(order, edges)]
    return References(paths, documents, [("books", "text")[number % 2] for number in range(parts)])
