"""What probes classify: words, entities or dependency arcs as spans of words with labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloze.core import random_keys
from cloze.core.errors import DataError
from cloze.core.ragged import ranges
from cloze.model.analyze.layer_states import SENTENCES, FrozenLayers
from cloze.model.tasks.encode import WordSamples, shuffled
from cloze.model.tasks.formats.columns import TaggedWords, entities
from cloze.model.tasks.task import Ints
from cloze.model.use.word_vectors import word_means

HEAD, RELATION = 6, 7  # columns of CoNLL-U
Example = tuple[tuple[tuple[int, int], ...], str, str]  # spans [begin, end), label, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Examples of a split, in the order of its sentences.

    Attributes:
        bounds: int64 [n, k, 2], words [begin, end) of the k spans of each example, counted over
            the sentences.
        sentences: int64 [n], sentence of each example.
        labels: names of the labels, [n].
        texts: text that decides an example's label in the control task, [n].
    """

    bounds: Ints
    sentences: Ints
    labels: Sequence[str]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def numbers(self, names: Sequence[str]) -> Ints:
        """Return the number of each label, int64 [n]; -1 for a label that is not in `names`."""
        number = {name: i for i, name in enumerate(names)}
        return np.array([number.get(label, -1) for label in self.labels], np.int64)


def sampled(examples: TaggedWords, limit: int, seed: int) -> TaggedWords:
    """Return whole sentences of at most `limit` words, at least one, drawn by the seed."""
    order = shuffled(len(examples), seed)
    sizes = np.array([len(examples.words[number]) for number in order])
    count = max(1, int((sizes.cumsum() <= limit).sum()))
    kept = np.sort(order[:count]).tolist()
    return dataclasses.replace(
        examples,
        words=[examples.words[number] for number in kept],
        tags=[(examples.tags or ())[number] for number in kept],
        line_numbers=[examples.line_numbers[number] for number in kept],
        documents=(),
    )


def spans_of(examples: TaggedWords, target: str) -> Spans:
    """Return the examples of labelled sentences: words, entities or arcs.

    Raises:
        DataError: the file has no dependency arcs, or nothing to classify.
    """
    find = {"words": _words, "entities": _entities, "arcs": _arcs}[target]
    found, sentences, before = list[Example](), list[int](), list[int]()
    offset = 0
    for number, words in enumerate(examples.words):
        own = list(find(examples, number))
        found += own
        sentences += [number] * len(own)
        before += [offset] * len(own)
        offset += len(words)
    if not found:
        raise DataError(f"{examples.where} has no {target} to classify; use another target")
    bounds = np.array([spans for spans, _, _ in found], np.int64)
    return Spans(
        bounds=bounds + np.array(before)[:, None, None],
        sentences=np.array(sentences),
        labels=[label for _, label, _ in found],
        texts=[text for _, _, text in found],
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


def control_labels(spans: Spans, train: Ints, seed: int) -> Ints:
    """Return the labels of the control task, int64 [n]: one for each text, at random.

    They have the distribution of the real labels, and tell nothing but the text's identity: what a
    probe knows of them it has memorized (Hewitt and Liang, "Designing and Interpreting Probes with
    Control Tasks", 2019).

    Args:
        train: int64, the real labels of the train split.
    """
    shares = np.cumsum(np.bincount(train)) / len(train)
    keys = [random_keys.document_key(text) for text in spans.texts]
    draws = random_keys.uniform(random_keys.fold_in(seed, np.array(keys, np.uint64)))
    return np.searchsorted(shares, draws, side="right")


def write_features(
    layers: FrozenLayers, samples: WordSamples, spans: Spans, count: int, file: Any
) -> npt.NDArray[np.float32]:
    """Write the features of all examples in all layers to a file, and map it into memory.

    Features are the mean states of an example's spans, one after the other.

    Args:
        count: number of sentences.
        file: open binary file.

    Returns:
        fp32 [n, layers, k * D].
    """
    features: Any = None
    offset = 0  # words before the part
    for begin, states in layers.words(samples, count):
        first, last = np.searchsorted(spans.sentences, [begin, begin + SENTENCES])
        own = spans.bounds[first:last] - offset
        offset += len(states)
        if features is None:
            shape = (len(spans), states.shape[1], spans.bounds.shape[1] * states.shape[2])
            features = np.memmap(file, np.float32, "w+", shape=shape)
        parts = []
        for begins, ends in own.transpose(1, 2, 0):
            words = torch.from_numpy(ranges(begins, ends - begins))
            owners = torch.from_numpy(np.repeat(np.arange(len(own)), ends - begins))
            means = word_means(states[words].flatten(1), owners, len(own))
            parts.append(means.view(len(own), *states.shape[1:]))
        features[first:last] = torch.cat(parts, dim=2).numpy()
    return features
