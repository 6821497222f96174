"""What probes classify: words, entities or dependency arcs, as spans of words with labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cloze.core import random_keys
from cloze.core.errors import DataError
from cloze.core.ragged import I64, ranges
from cloze.model.tasks.encode import WordSamples, shuffled
from cloze.model.tasks.formats.columns import TaggedWords, entities
from cloze.model.use.word_vectors import word_means

HEAD, RELATION = 6, 7  # columns of CoNLL-U
Example = tuple[tuple[tuple[int, int], ...], str, str]  # spans [begin, end), label, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Examples of a split, in the order of its sentences.

    Attributes:
        bounds: int64 [n, k, 2], words [begin, end) of the k spans of each example, counted over
            all sentences.
        labels: labels, [n].
        texts: texts that decide the labels of the control task, [n].
    """

    bounds: I64
    labels: Sequence[str]
    texts: Sequence[str]

    def numbers(self, names: Sequence[str]) -> I64:
        """Return the number of each label, int64 [n]; -1 for a label that is not in `names`."""
        number = {name: i for i, name in enumerate(names)}
        return np.array([number.get(label, -1) for label in self.labels], np.int64)

    def control_labels(self, train: I64, seed: int) -> I64:
        """Return the labels of the control task, int64 [n]: one for each text, at random.

        They have the distribution of the real labels `train`, int64. A probe that knows them has
        memorized texts (Hewitt and Liang, "Designing and Interpreting Probes with Control Tasks",
        2019).
        """
        shares = np.cumsum(np.bincount(train)) / len(train)
        keys = [random_keys.document_key(text) for text in self.texts]
        draws = random_keys.uniform(random_keys.fold_in(seed, np.array(keys, np.uint64)))
        return np.searchsorted(shares, draws, side="right")

    def features(self, words: Tensor) -> Tensor:
        """Return the mean states of each example's spans, side by side, fp32 [n, layers, k * D].

        Args:
            words: fp32 [words, layers, D].
        """
        count, parts = len(self.bounds), []
        for begins, ends in self.bounds.transpose(1, 2, 0):
            owners = torch.from_numpy(np.repeat(np.arange(count), ends - begins))
            members = torch.from_numpy(ranges(begins, ends - begins))
            means = word_means(words[members].flatten(1), owners, count)
            parts.append(means.view(count, *words.shape[1:]))
        return torch.cat(parts, dim=2)


def word_states(tokens: Tensor, samples: WordSamples) -> Tensor:
    """Return the mean state of each word's tokens, fp32 [words, layers, D], as `embed --words`.

    Args:
        tokens: fp32 [tokens, layers, D], of all samples.
    """
    begins = samples.lengths.cumsum() - samples.lengths
    pairs = zip(samples.first, begins, strict=True)
    first = np.concatenate([own + begin for own, begin in pairs])
    sizes = np.concatenate(samples.sizes)
    owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    means = word_means(
        tokens[torch.from_numpy(ranges(first, sizes))].flatten(1), owners, len(sizes)
    )
    return means.view(len(sizes), *tokens.shape[1:])


def sampled(examples: TaggedWords, limit: int, seed: int) -> TaggedWords:
    """Return whole sentences of at most `limit` words, at least one sentence, drawn by the seed."""
    assert examples.tags is not None
    order = shuffled(len(examples), seed)
    sizes = np.array([len(examples.words[number]) for number in order])
    kept = np.sort(order[: max(1, int((sizes.cumsum() <= limit).sum()))])
    return dataclasses.replace(
        examples,
        words=[examples.words[number] for number in kept],
        tags=[examples.tags[number] for number in kept],
        line_numbers=[examples.line_numbers[number] for number in kept],
        documents=(),
    )


def spans_of(examples: TaggedWords, target: str) -> Spans:
    """Return the examples of labelled sentences: words, entities or arcs.

    Raises:
        DataError: the file has no dependency arcs, or nothing to classify.
    """
    find = {"words": _words, "entities": _entities, "arcs": _arcs}[target]
    found, offsets, offset = list[Example](), list[int](), 0
    for number, words in enumerate(examples.words):
        found += find(examples, number)
        offsets += [offset] * (len(found) - len(offsets))
        offset += len(words)
    if not found:
        raise DataError(f"{examples.where} has no {target} to classify; use another target")
    bounds, labels, texts = zip(*found, strict=True)
    return Spans(
        bounds=np.array(bounds, np.int64) + np.array(offsets)[:, None, None],
        labels=labels,
        texts=texts,
    )


def _words(examples: TaggedWords, number: int) -> Iterator[Example]:
    assert examples.tags is not None
    pairs = zip(examples.words[number], examples.tags[number], strict=True)
    for place, (word, tag) in enumerate(pairs):
        yield ((place, place + 1),), tag, word


def _entities(examples: TaggedWords, number: int) -> Iterator[Example]:
    assert examples.tags is not None
    for kind, first, last in entities(examples.tags[number]):
        yield ((first, last + 1),), kind, " ".join(examples.words[number][first : last + 1])


def _arcs(examples: TaggedWords, number: int) -> Iterator[Example]:
    words = examples.words[number]
    for place, word in enumerate(words):
        columns = examples.lines[examples.line_numbers[number][place]]
        head = columns[HEAD] if len(columns) > RELATION else ""
        if not head.isdecimal() or int(head) > len(words):
            raise DataError(
                f"{examples.location(number, place)}: the head ({head!r}) is no word of the "
                f"sentence; target arcs needs CoNLL-U files, such as those of task ud-pos"
            )
        if int(head):
            yield ((place, place + 1), (int(head) - 1, int(head))), columns[RELATION], word
