"""From words to samples: their pieces, and windows of whole words where a sentence is longer than the model reads.

A word is answered for at its first piece (Devlin et al. 2019, 5.3), and in one window: the one in which it has more neighbours. A word
that the tokenizer makes nothing of (control characters) stands as the unknown piece, so every word has an answer and none takes
another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from model.data.batch import Batch
from model.data.layouts import Kind
from model.layers.batch import IGNORE
from model.tasks.encode import TextSamples
from model.tasks.task import Ints
from pipeline.tokenizer.tokenizer import Tokenizer

FIRST = "first_pieces"  # an entry of a batch: bool [B, L], where a word is answered for


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some words of a sentence, and which of them are answered for here.

    Attributes:
        sentence: its number.
        words: the first word, and the one behind the last.
        own: likewise, of those that are answered for.
    """

    sentence: int
    words: tuple[int, int]
    own: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSamples:
    """A sample is one window.

    Attributes:
        texts: the windows' pieces.
        windows: in the order of the sentences and their words.
        first: int64 [n] each: where in the sequence the words' first pieces are, of those that the window answers for.
        labels: int64 [n] each, of the same words; None where they are not known.
    """

    texts: TextSamples
    windows: tuple[Window, ...]
    first: tuple[Ints, ...]
    labels: tuple[Ints, ...] | None

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def lengths(self) -> Ints:
        return self.texts.lengths

    @property
    def truncated(self) -> int:
        return self.texts.truncated

    @property
    def lost(self) -> Mapping[str, int]:
        return {}

    def batch(self, chosen: Sequence[int] | Ints, layout: Kind = "rows") -> Batch:
        """As `TextSamples.batch`, with `first_pieces`, bool [B, L], and where they are known `labels`, int64 [B, L], IGNORE elsewhere."""
        batch = self.texts.batch(chosen, layout)
        shape = tuple(batch["input_ids"].shape)
        first, labels = np.zeros(shape, bool), np.full(shape, IGNORE, np.int64)
        for row, i in enumerate(chosen):
            first[row, self.first[i]] = True
            if self.labels is not None:
                labels[row, self.first[i]] = self.labels[i]
        batch = {**batch, FIRST: torch.from_numpy(first)}
        return batch if self.labels is None else {**batch, "labels": torch.from_numpy(labels)}


def encode_words(
    sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, max_length: int, labels: Sequence[Ints] | None = None
) -> WordSamples:
    """Cut sentences into windows of at most `max_length` pieces, special tokens included.

    Args:
        labels: of each sentence, one a word.
    """
    room = max_length - 2
    most = max(room // 2, 1)  # pieces of a word, so that a window holds another one
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    sequences, windows, first, own_labels, truncated = [], list[Window](), [], [], 0
    for number, pieces in enumerate(_pieces(sentences, tokenizer)):
        kept = [piece[:most] for piece in pieces]
        truncated += any(len(piece) > most for piece in pieces)
        sizes = np.array([len(piece) for piece in kept], dtype=np.int64)
        for window in cut(number, sizes, room):
            (begin, end), (own, behind) = window.words, window.own
            starts = np.cumsum(sizes[begin:end]) - sizes[begin:end] + 1
            flat = [cls, *(token for piece in kept[begin:end] for token in piece), sep]
            sequences.append(np.array(flat, dtype=np.int32))
            windows.append(window)
            first.append(starts[own - begin : behind - begin])
            if labels is not None:
                own_labels.append(np.asarray(labels[number][own:behind], dtype=np.int64))
    texts = TextSamples(
        sequences=tuple(sequences),
        second=np.array([len(sequence) for sequence in sequences], dtype=np.int64),
        truncated=int(truncated),
        pad=tokenizer.special.pad,
    )
    return WordSamples(
        texts=texts, windows=tuple(windows), first=tuple(first), labels=None if labels is None else tuple(own_labels)
    )


def cut(sentence: int, sizes: Ints, room: int) -> list[Window]:
    """The windows of a sentence. One overlaps the next by up to half the room; of the words in both, each answers for the nearer half.

    Args:
        sizes: the pieces of its words, at most half the room each (and at least one).
    """
    ends = np.cumsum(sizes)
    spans: list[tuple[int, int]] = []
    begin = 0
    while True:
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + room, side="right"))
        spans.append((begin, end))
        if end == len(sizes):
            break
        begin = int(np.searchsorted(ends, ends[end - 1] - room // 2)) + 1  # the overlap is no longer than half the room
    borders = [0, *((after[0] + span[1] + 1) // 2 for span, after in zip(spans, spans[1:], strict=False)), len(sizes)]
    return [Window(sentence=sentence, words=span, own=(borders[i], borders[i + 1])) for i, span in enumerate(spans)]


def _pieces(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> list[list[npt.NDArray[np.uint32]]]:
    """The pieces of every word, at least one; those behind the first word of a sentence as they are written behind a space."""
    words = [word for sentence in sentences for word in sentence]
    behind = np.ones(len(words), dtype=np.bool_)
    behind[np.cumsum([0, *(len(sentence) for sentence in sentences)])[:-1]] = False
    ids, offsets = tokenizer.encode_flat(words, behind)
    unknown = np.array([tokenizer.special.unk], dtype=np.uint32)
    bounds = offsets.tolist()
    found = [ids[bounds[i] : bounds[i + 1]] if bounds[i] < bounds[i + 1] else unknown for i in range(len(words))]
    cuts = np.cumsum([0, *(len(sentence) for sentence in sentences)]).tolist()
    return [found[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]
