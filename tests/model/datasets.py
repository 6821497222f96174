"""A tiny synthetic dataset artifact, written by the schema alone, for the trainer's tests.

Rows are sentences of a language with strong rules (each token is the successor of the one before,
modulo a small alphabet), so that a model learns something in a few dozen steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import HELDOUT, TRAIN, shard_name
from cloze.pipeline.dataset import schema
from cloze.pipeline.tokenizer.special import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5
# Fields that depend on the machine instead of the training, as do all `time_…` fields. Only they
# differ between equal runs.
TIMING_FIELDS = frozenset({
    "time", "tokens_per_second", "padded_tokens_per_second", "data_wait", "mfu", "memory_gb",
    "gpu_memory_gb",
})  # fmt: skip


def write_dataset(
    path: Path,
    *,
    rows: int = 96,
    heldout: int = 24,
    length: int = 32,
    vocab_size: int = 64,
    copies: int = 2,
    shards: int = 2,
    pair_task: str | None = "nsp",
    seed: int = 0,
    full: bool = False,
    masks: dict[str, Any] | None = None,
    lengths: Callable[[np.random.Generator], int] | None = None,
    packed: bool = False,
    tokenizer: str = "0",
) -> str:
    """Write the artifact; returns its path.

    Args:
        packed: every row is full of sequences of such lengths; for `pair_task` None.
        full: every row is `length` long, else lengths vary, as `lengths` draws them or from half of
            that on.
        masks: what it says of its masks.
        tokenizer: fingerprint that it names.
    """
    draw = lengths or (lambda rng: length if full else int(rng.integers(length // 2, length + 1)))
    rng = np.random.default_rng(seed)
    info = schema.DatasetInfo(
        recipe="bert",
        length=length,
        copies=copies,
        vocab_size=vocab_size,
        special=SPECIAL,
        pair_task=pair_task,
        seed=seed,
        tokenizer=tokenizer,
        masks=masks,
        packed=packed,
    )
    path.mkdir(parents=True)
    for split, total in ((TRAIN, rows), (HELDOUT, heldout)):
        for shard in range(shards):
            count = total * (shard + 1) // shards - total * shard // shards
            made = [
                _packed_row(rng, info, draw) if packed else _row(rng, info, draw(rng))
                for _ in range(count)
            ]
            _write(path / shard_name(split, shard, shards), info, made)
    (path / "tokenizer").mkdir()
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"t{i}" for i in range(FIRST_WORD, vocab_size)),
    ]
    (path / "tokenizer" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    files = artifact.hash_files(str(path), artifact.data_files(str(path)))
    manifest = artifact.Manifest(
        stage="dataset",
        version=1,
        fingerprint=f"{seed:064x}",
        parents={},
        config={},
        files=files,
        rows=rows,
        tokens=0,
    )
    artifact.write_manifest(str(path), manifest)
    return str(path)


def _row(rng: np.random.Generator, info: schema.DatasetInfo, length: int) -> dict[str, object]:
    words = info.vocab_size - FIRST_WORD
    middle = (length + 1) // 2
    label = int(rng.integers(2)) if info.pair_task else None
    first, second = (int(rng.integers(words)) for _ in range(2))
    if label == 0:
        second = first + middle
    ids = (
        np.concatenate([first + np.arange(middle), second + np.arange(length - middle)]) % words
        + FIRST_WORD
    )
    ids[0], ids[middle - 1], ids[-1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
    masks = []
    for _ in range(info.copies):
        words_at = np.flatnonzero(ids >= FIRST_WORD)
        positions = np.sort(rng.choice(words_at, size=max(1, round(0.15 * length)), replace=False))
        drawn = rng.random(len(positions))
        shown = np.where(
            drawn < 0.8,
            SPECIAL.mask,
            np.where(drawn < 0.9, ids[positions], rng.integers(0, info.vocab_size, len(positions))),
        )
        masks.append({"positions": positions.tolist(), "input_ids": shown.tolist()})
    return {
        "input_ids": ids.tolist(),
        "segment_start": middle if info.pair_task else length,
        "pair_label": label,
        "masks": masks,
        "source": {"document": int(rng.integers(1 << 62)), "offset": 0},
    }


def _packed_row(
    rng: np.random.Generator, info: schema.DatasetInfo, draw: Callable[[np.random.Generator], int]
) -> dict[str, object]:
    """Sequences one behind the other, until the row is full."""
    whole, starts, free = _row(rng, info, info.length), [0], info.length
    while (free := free - min(free, max(4, draw(rng)))) > 3:
        starts.append(info.length - free)
    return {**whole, "boundaries": starts}


def _write(path: Path, info: schema.DatasetInfo, rows: list[dict[str, object]]) -> None:
    table = schema.dataset_schema(info, schema.id_dtype(info.vocab_size))
    with storage.atomic_output(str(path)) as handle, pa.ipc.new_file(handle, table) as writer:
        for start in range(0, len(rows), 16):
            writer.write_batch(pa.RecordBatch.from_pylist(rows[start : start + 16], schema=table))


def lines(path: Path) -> list[dict[str, object]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def strip_timing(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a log line without the fields that depend on machine and time."""
    return {
        name: value
        for name, value in line.items()
        if name not in TIMING_FIELDS and not name.startswith("time_")
    }
