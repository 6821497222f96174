"""Index of n-grams of task texts, used to find them in documents.

A document is contaminated if it contains 13 consecutive words of a task text, or the whole of a
text of 8 to 12 words. This is the rule of GPT-3 (Brown et al. 2020, appendix C: n-grams of 13
words, at least 8) with the n of Gopher (Rae et al. 2021, A.1.1). Words are compared without case
and punctuation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.pipeline.corpus.signatures import WordSequence, normalize_words

_SIEVE_BITS = 22  # 4M flags of one byte; most n-grams of documents hit none


class TaskIndex:
    """N-grams of task files. `names`: the task files."""

    def __init__(
        self,
        names: tuple[str, ...],
        tables: dict[int, tuple[random_keys.U64, npt.NDArray[np.int32]]],
    ) -> None:
        """Build the sieves. `tables`: length -> sorted hashes and the file number of each."""
        self.names = names
        self.tables = dict(sorted(tables.items(), reverse=True))
        self._sieves = {length: self._sieve(hashes) for length, (hashes, _) in self.tables.items()}

    @staticmethod
    def _sieve(hashes: random_keys.U64) -> npt.NDArray[np.bool_]:
        sieve = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        sieve[(hashes >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)] = True
        return sieve

    def __len__(self) -> int:
        return sum(hashes.size for hashes, _ in self.tables.values())

    @classmethod
    def build(
        cls, texts: Iterable[tuple[str, str]], words: int = 13, minimum: int = 8
    ) -> TaskIndex:
        """Return an index of (name of the task file, text) pairs.

        Args:
            words: n of the n-grams.
            minimum: shorter texts of at least this many words must match as a whole; still shorter
                texts are ignored.
        """
        names: dict[str, int] = {}
        grams: dict[int, list[tuple[random_keys.U64, int]]] = {}
        for name, text in texts:
            number = names.setdefault(name, len(names))
            run = WordSequence(normalize_words(text))
            length = min(words, run.count)
            if length >= min(minimum, words) and length:
                grams.setdefault(length, []).append((run.ngrams(length), number))
        tables = {}
        for length, pieces in grams.items():
            hashes = np.concatenate([piece for piece, _ in pieces])
            numbers = np.repeat(
                np.array([number for _, number in pieces], np.int32),
                [piece.size for piece, _ in pieces],
            )
            unique, first = np.unique(hashes, return_index=True)
            tables[length] = unique, numbers[first]
        return cls(tuple(names), tables)

    def find(self, text: str) -> tuple[str, str] | None:
        """Return (task, words) of the first n-gram shared with a task; longest n first."""
        run = WordSequence(normalize_words(text))
        for length, (hashes, numbers) in self.tables.items():
            grams = run.ngrams(length)
            candidates = np.flatnonzero(
                self._sieves[length][(grams >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)]
            )
            if candidates.size:
                positions = np.searchsorted(hashes, grams[candidates])
                positions[positions == hashes.size] = 0
                hits = np.flatnonzero(hashes[positions] == grams[candidates])
                if hits.size:
                    first = int(hits[0])
                    return self.names[numbers[positions[first]]], run.text(
                        int(candidates[first]), length
                    )
        return None

    def save(self, path: str) -> None:
        """Write the index as an Arrow file."""
        import pyarrow as pa

        from cloze.core.arrow import write_arrow

        schema = pa.schema(
            [("length", pa.int32()), ("hash", pa.uint64()), ("task", pa.int32())],
            metadata={"tasks": "\n".join(self.names)},
        )
        batches = (
            pa.record_batch([np.full(hashes.size, length, np.int32), hashes, tasks], schema=schema)
            for length, (hashes, tasks) in self.tables.items()
        )
        write_arrow(path, schema, batches)

    @classmethod
    def load(cls, path: str) -> TaskIndex:
        """Read the index that `save` wrote."""
        from cloze.core.arrow import read_arrow

        table = read_arrow(path)
        length, hashes, tasks = (table[name].to_numpy() for name in ("length", "hash", "task"))
        names = tuple(table.schema.metadata[b"tasks"].decode().split("\n"))
        return cls(
            names,
            {
                int(n): (hashes[length == n].copy(), tasks[length == n].copy())
                for n in np.unique(length)
            },
        )


@functools.lru_cache(maxsize=1)
def load_index(path: str, fingerprint: str) -> TaskIndex:
    """Load an index once per process; `fingerprint` tells versions at the same path apart."""
    del fingerprint
    return TaskIndex.load(path)
