"""Tokenization of examples into samples, and batches for training and evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloze.core import random_keys
from cloze.core.ragged import I64
from cloze.model.data.layouts import LayoutKind, Sequences, make_layout
from cloze.model.layers.batch import IGNORE_INDEX, Batch, extend
from cloze.model.tasks.task import Samples
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

# Batches per pool. Training sorts each pool by length, for little padding in random batches.
POOL = 16
SECOND = "second_text"  # batch entry: bool [B, L], tokens of a pair's second text
# Positions of a batch in prediction, padding included. No option changes them, so none changes
# scores by rounding. On a GPU as many as 64 samples of 512 tokens have; a CPU needs fewer.
CPU_POSITIONS, GPU_POSITIONS = 8192, 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSamples:
    """Samples that are one sequence each: a text, or a pair of texts.

    Attributes:
        sequences: int32 [L_i] each: [CLS] A [SEP], or a pair in the tokenizer's frame.
        second: int64 [n], start of B in each sequence; the length if there is no B.
        typed: true if tokens of B have token type 1.
        targets: inputs of the loss by their name in a batch; one row per sample.
        dropped_counts: number of answers that no sample can give, by reason.
        global_tokens: int64 [n, 2], tokens [begin, end) of each sequence that are global in a
            Longformer, beside the first one; None: the first one alone.
    """

    sequences: tuple[npt.NDArray[np.int32], ...]
    second: I64
    truncated: int
    pad: int
    typed: bool = True
    targets: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    dropped_counts: Mapping[str, int] = field(default_factory=dict)
    global_tokens: I64 | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> I64:
        return np.array([len(sequence) for sequence in self.sequences], dtype=np.int64)

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind = "rows") -> Batch:
        """Return the batch of these samples, padded to the longest.

        It has `targets`; `second_text`, bool [B, L], true at B; and `global_attention_mask` if the
        task names global tokens.
        """
        lengths = np.array([len(self.sequences[i]) for i in indices], dtype=np.int64)
        ids = np.full((len(indices), lengths.max()), self.pad, dtype=np.int64)
        for row, i in enumerate(indices):
            ids[row, : lengths[row]] = self.sequences[i]
        positions = np.arange(ids.shape[1])
        real = positions < lengths[:, None]
        second = (positions >= self.second[indices][:, None]) & real
        arrays = {
            SECOND: second,
            **{name: target[indices] for name, target in self.targets.items()},
        }
        if self.global_tokens is not None:
            begin, end = self.global_tokens[indices].T[:, :, None]
            named = (positions >= begin) & (positions < end)
            arrays["global_attention_mask"] = ((positions == 0) | named) & real
        fields = {name: torch.from_numpy(array) for name, array in arrays.items()}
        batch: Batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real),
            "token_type_ids": torch.from_numpy((second & self.typed).astype(np.int64)),
        }
        token_layout = make_layout(layout, Sequences.alone(lengths, ids.shape[1]))
        if token_layout is not None:
            batch["layout"] = token_layout
        return extend(batch, fields)


def encode(
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_length: int,
    targets: Mapping[str, npt.NDArray[Any]] | None = None,
) -> TextSamples:
    """Tokenize, truncate and frame texts or pairs, with at most `max_length` tokens each."""
    first = tokenizer.encode_batch(list(texts))
    other = tokenizer.encode_batch(list(text_pairs)) if text_pairs is not None else None
    return framed(first, other, tokenizer, max_length, targets)


def framed(
    first: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]] | None,
    tokenizer: Tokenizer,
    max_length: int,
    targets: Mapping[str, npt.NDArray[Any]] | None = None,
) -> TextSamples:
    """Truncate and frame texts or pairs that are tokenized."""
    special, frame = tokenizer.special, tokenizer.pair_frame
    begins, sep = special.begins, special.sep
    room = max_length - tokenizer.frame_size(pair=other is not None)
    sequences, second, truncated = [], [], 0
    for i, tokens in enumerate(first):
        pair = () if other is None else other[i]
        first_count, second_count = truncate(len(tokens), len(pair), room)
        sequence = [*begins, *tokens[:first_count], *((sep,) if other is None else frame.separator)]
        second.append(len(sequence))
        if other is not None:
            sequence += [*pair[:second_count], sep]
        truncated += first_count < len(tokens) or second_count < len(pair)
        sequences.append(np.array(sequence, dtype=np.int32))
    return TextSamples(
        sequences=tuple(sequences),
        second=np.array(second, dtype=np.int64),
        truncated=int(truncated),
        pad=tokenizer.special.pad,
        typed=frame.typed,
        targets=targets or {},
    )


def truncate(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the tokens that remain of each sequence, truncating the longer one until both fit.

    On a tie the second one loses a token (google-research/bert, run_classifier.py,
    `_truncate_seq_pair`).
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if 2 * shorter < room:  # only the longer one is truncated
        return (room - second, second) if first > second else (first, room - first)
    return (room + 1) // 2, room // 2


def training_batches(lengths: I64, batch_size: int, seed: int, epoch: int) -> list[I64]:
    """Return an epoch's batches as sample numbers; a function of seed and epoch.

    Samples are shuffled, sorted by length within pools of `POOL` batches, and cut; then the batches
    are shuffled.
    """
    order = shuffled(len(lengths), seed, epoch, 0)
    size = batch_size * POOL
    batches: list[I64] = []
    for start in range(0, len(order), size):
        pool = order[start : start + size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [
            pool[offset : offset + batch_size] for offset in range(0, len(pool), batch_size)
        ]
    return [batches[i] for i in shuffled(len(batches), seed, epoch, 1)]


def shuffled(count: int, *key: int) -> I64:
    """Return a permutation of 0 to `count` - 1 that depends on the key alone."""
    return np.argsort(random_keys.fold_in(*key, np.arange(count)), kind="stable")


def evaluation_batches(lengths: I64, positions: int) -> list[I64]:
    """Return batches of similar length as sample numbers, longest first: memory peaks early.

    Args:
        positions: maximum positions of a batch, padding included; a longer sample is one alone.
    """
    order = np.argsort(-lengths, kind="stable")
    batches, begin = [], 0
    while begin < len(order):
        end = begin + max(1, positions // int(lengths[order[begin]]))
        batches.append(order[begin:end])
        begin = end
    return batches


def groups_of(samples: Samples) -> list[I64]:
    """Return the numbers of samples that may share a batch: all, or those of each task."""
    groups: Sequence[I64] | None = getattr(samples, "groups", None)
    return [np.arange(len(samples))] if groups is None else list(groups)


# Words: tokens of words, and windows of words for long sentences.

FIRST = "first_pieces"  # batch entry: bool [B, L], first token of each word that is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWindow:
    """Range of words of a sentence.

    Attributes:
        words: range of words, end exclusive; it exceeds the sentence if it shows others.
        own: range of words that this window predicts, end exclusive.
    """

    sentence: int
    words: tuple[int, int]
    own: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSamples(TextSamples):
    """Samples that are windows of words.

    Attributes:
        windows: windows in the order of sentences and words.
        first: int64 [n] each, position of the first token of each predicted word.
        sizes: int64 [n] each, number of tokens of each predicted word.
        labels: int64 [n] each, labels of these words; None if unknown.
    """

    windows: tuple[WordWindow, ...]
    first: tuple[I64, ...]
    sizes: tuple[I64, ...]
    labels: tuple[I64, ...] | None

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind = "rows") -> Batch:
        """Return `TextSamples.batch` with `first_pieces`, bool [B, L].

        With known labels, also `labels`, int64 [B, L], IGNORE_INDEX elsewhere.
        """
        batch = TextSamples.batch(self, indices, layout)
        shape = tuple(batch["input_ids"].shape)
        first, labels = np.zeros(shape, bool), np.full(shape, IGNORE_INDEX, np.int64)
        for row, i in enumerate(indices):
            first[row, self.first[i]] = True
            if self.labels is not None:
                labels[row, self.first[i]] = self.labels[i]
        fields = {FIRST: first} if self.labels is None else {FIRST: first, "labels": labels}
        return extend(batch, {name: torch.from_numpy(array) for name, array in fields.items()})

    def by_sentence(self, rows: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Return the values of each sentence's words, [words, ...], at their first tokens.

        Args:
            rows: values of all tokens of each window, [L, ...].
        """
        parts: dict[int, list[npt.NDArray[Any]]] = {}
        for window, first, row in zip(self.windows, self.first, rows, strict=True):
            parts.setdefault(window.sentence, []).append(row[first])
        return [np.concatenate(own) for own in parts.values()]


def encode_words(
    sentences: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    max_length: int,
    labels: Sequence[I64] | None = None,
    documents: Sequence[int] = (),
) -> WordSamples:
    """Split sentences into windows of at most `max_length` tokens, special tokens included.

    Args:
        labels: labels of each sentence, one per word.
        documents: number of each document's first sentence, from 0; windows are filled up with
            the words around them in the document. Empty: with none.
    """
    begins, sep = tokenizer.special.begins, tokenizer.special.sep
    room = max_length - tokenizer.frame_size(pair=False)
    # A word has at most half of a window, so that the window has room for another word.
    max_word_tokens = max(room // 2, 1)
    sequences, windows, truncated = [], list[WordWindow](), 0
    first, own_sizes, own_labels = [], [], []
    texts = [*(documents or range(len(sentences))), len(sentences)]
    tokens_of = iter(_pieces(sentences, tokenizer, texts[:-1]))
    for text in itertools.starmap(range, pairwise(texts)):  # the sentences of one text
        word_tokens = [tokens for _ in text for tokens in next(tokens_of)]
        shortened = [tokens[:max_word_tokens] for tokens in word_tokens]
        sizes = np.array([len(tokens) for tokens in shortened], dtype=np.int64)
        offset = 0  # of the sentence in its text, in words
        for number in text:
            stop = offset + len(sentences[number])
            truncated += any(len(tokens) > max_word_tokens for tokens in word_tokens[offset:stop])
            for window in cut(number, sizes[offset:stop], room):
                begin, end = (offset + word for word in window.words)
                if documents:
                    begin, end = widen(sizes, begin, end, room)
                    window = replace(window, words=(begin - offset, end - offset))
                own_begin, own_end = window.own
                starts = np.cumsum(sizes[begin:end]) - sizes[begin:end] + len(begins)
                ids = [*begins, *itertools.chain(*shortened[begin:end]), sep]
                sequences.append(np.array(ids, dtype=np.int32))
                windows.append(window)
                first.append(starts[offset + own_begin - begin : offset + own_end - begin])
                own_sizes.append(sizes[offset + own_begin : offset + own_end])
                if labels is not None:
                    own_labels.append(np.asarray(labels[number][own_begin:own_end], np.int64))
            offset = stop
    return WordSamples(
        sequences=tuple(sequences),
        second=np.array([len(sequence) for sequence in sequences], dtype=np.int64),
        truncated=int(truncated),
        pad=tokenizer.special.pad,
        windows=tuple(windows),
        first=tuple(first),
        sizes=tuple(own_sizes),
        labels=None if labels is None else tuple(own_labels),
    )


def cut(sentence: int, sizes: I64, room: int) -> list[WordWindow]:
    """Return a sentence's windows, which overlap by at most `room` / 2 tokens.

    Args:
        sizes: tokens of each word, at least one and at most half of `room`.
    """
    ends = np.cumsum(sizes)
    spans: list[tuple[int, int]] = []
    begin = 0
    while True:
        tokens_before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, tokens_before + room, side="right"))
        spans.append((begin, end))
        if end == len(sizes):
            break
        # The overlap of two windows is at most half of `room`.
        begin = int(np.searchsorted(ends, ends[end - 1] - room // 2)) + 1
    middles = [(after[0] + before[1] + 1) // 2 for before, after in pairwise(spans)]
    own = pairwise([0, *middles, len(sizes)])
    return [
        WordWindow(sentence=sentence, words=words, own=own_words)
        for words, own_words in zip(spans, own, strict=True)
    ]


def widen(sizes: I64, begin: int, end: int, room: int) -> tuple[int, int]:
    """Return words [begin, end) with as many neighbours as fit into `room`, evenly on both sides.

    A side that has fewer leaves its room to the other.

    Args:
        sizes: tokens of each word of the text, at least one.
    """
    spare = room - int(sizes[begin:end].sum())
    before = np.cumsum(sizes[max(begin - spare, 0) : begin][::-1])
    after = np.cumsum(sizes[end : end + spare])
    most = max(spare // 2, spare - int(after[-1:].sum()))
    left = int(np.searchsorted(before, most, side="right"))
    most = spare - int(before[:left][-1:].sum())
    return begin - left, end + int(np.searchsorted(after, most, side="right"))


def _pieces(
    sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, texts: Sequence[int]
) -> list[list[npt.NDArray[np.uint32]]]:
    """Return the tokens of every word, at least one; words after a text's first follow a space.

    Args:
        texts: number of each text's first sentence.
    """
    words = [word for sentence in sentences for word in sentence]
    bounds = np.cumsum([0, *(len(sentence) for sentence in sentences)])
    follows_space = np.ones(len(words), dtype=np.bool_)
    follows_space[bounds[np.asarray(texts, dtype=np.int64)]] = False
    ids, offsets = tokenizer.encode_flat(words, follows_space)
    unknown = np.array([tokenizer.special.unk], dtype=np.uint32)
    word_ids = [
        ids[begin:end] if begin < end else unknown for begin, end in pairwise(offsets.tolist())
    ]
    return [word_ids[begin:end] for begin, end in pairwise(bounds.tolist())]
