"""Corpus stage: an index of the text of tasks, by which it is found again in documents: runs of words that both have.

A document that holds 13 words in a row of a task's text is contaminated; so is one that holds the whole of a shorter text of 8
to 12 words. That is the rule of GPT-3 (Brown et al. 2020, appendix C: n-grams of 13 words, of 8 at least), and the n of
Gopher (Rae et al. 2021, A.1.1). Words are compared without case and punctuation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys
from pipeline.corpus.dedup.ngrams import Words, normal

_SIEVE_BITS = 22  # of 4M flags of a byte each, which most n-grams do not pass


class TaskIndex:
    """The n-grams of task files.

    Attributes:
        names: the task files.
        lengths: words of the n-grams, longest first.
    """

    def __init__(self, names: tuple[str, ...], tables: dict[int, tuple[random_keys.U64, npt.NDArray[np.int32]]]) -> None:
        """Args: tables: by length, the sorted hashes and for each the number of its file."""
        self.names = names
        self.tables = dict(sorted(tables.items(), reverse=True))
        self.lengths = tuple(self.tables)
        self._sieves = {length: self._sieve(hashes) for length, (hashes, _) in self.tables.items()}

    @staticmethod
    def _sieve(hashes: random_keys.U64) -> npt.NDArray[np.bool_]:
        sieve = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        sieve[(hashes >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)] = True
        return sieve

    def __len__(self) -> int:
        return sum(hashes.size for hashes, _ in self.tables.values())

    @classmethod
    def build(cls, texts: Iterable[tuple[str, str]], words: int = 13, minimum: int = 8) -> TaskIndex:
        """An index of (name of the task file, text) pairs.

        Args:
            texts: of the tasks.
            words: n of the n-grams.
            minimum: shorter texts of at least so many words are looked for as a whole; still shorter ones are not.
        """
        names: dict[str, int] = {}
        found: dict[int, list[tuple[random_keys.U64, int]]] = {}
        for name, text in texts:
            number = names.setdefault(name, len(names))
            run = Words(normal(text))
            length = min(words, run.count)
            if length >= min(minimum, words) and length:
                found.setdefault(length, []).append((run.ngrams(length), number))
        tables = {}
        for length, pieces in found.items():
            hashes = np.concatenate([piece for piece, _ in pieces])
            numbers = np.repeat(np.array([number for _, number in pieces], np.int32), [piece.size for piece, _ in pieces])
            unique, first = np.unique(hashes, return_index=True)
            tables[length] = unique, numbers[first]
        return cls(tuple(names), tables)

    def find(self, text: str) -> tuple[str, str] | None:
        """(task, words): the first run of words of `text` that a task has too, by the longest n-grams there are."""
        run = Words(normal(text))
        for length, (hashes, numbers) in self.tables.items():
            grams = run.ngrams(length)
            passed = np.flatnonzero(self._sieves[length][(grams >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)])
            if passed.size:
                place = np.searchsorted(hashes, grams[passed])
                place[place == hashes.size] = 0
                hits = np.flatnonzero(hashes[place] == grams[passed])
                if hits.size:
                    at = int(hits[0])
                    return self.names[numbers[place[at]]], run.text(int(passed[at]), length)
        return None

    def save(self, path: str) -> None:
        """Write it as an Arrow file for the workers."""
        import pyarrow as pa

        from pipeline.core.arrow import write_arrow

        columns = [
            np.concatenate(
                [np.full(hashes.size, length, np.int32) for length, (hashes, _) in self.tables.items()]
                or [np.zeros(0, np.int32)]
            ),
            np.concatenate([hashes for hashes, _ in self.tables.values()] or [np.zeros(0, np.uint64)]),
            np.concatenate([numbers for _, numbers in self.tables.values()] or [np.zeros(0, np.int32)]),
        ]
        schema = pa.schema(
            [("length", pa.int32()), ("hash", pa.uint64()), ("task", pa.int32())], metadata={"tasks": "\n".join(self.names)}
        )
        write_arrow(path, schema, [pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema)])

    @classmethod
    def load(cls, path: str) -> TaskIndex:
        """What `save` wrote."""
        from pipeline.core.arrow import read_arrow

        table = read_arrow(path)
        length, hashes, tasks = (table[name].to_numpy() for name in ("length", "hash", "task"))
        names = tuple(table.schema.metadata[b"tasks"].decode().split("\n"))
        return cls(names, {int(n): (hashes[length == n].copy(), tasks[length == n].copy()) for n in np.unique(length)})


@functools.lru_cache(maxsize=1)
def loaded(path: str, fingerprint: str) -> TaskIndex:
    """The index at `path`, read once a process; `fingerprint` tells two of the same path apart."""
    del fingerprint
    return TaskIndex.load(path)
