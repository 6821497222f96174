"""Probes: classifiers of frozen states, and what they classify."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.errors import DataError
from cloze.core.ragged import I64, ranges
from cloze.labs.word_vectors import word_means
from cloze.model.tasks.encode import WordSamples, shuffled
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.formats.tag_schemes import entities

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


BATCH, RATE, EPOCHS, PATIENCE = 128, 1e-3, 30, 3
EPOCH = 6400  # examples of an epoch, at least; fewer are repeated
MIX_RATE = 1e-2  # learning rate of the mixtures, whose few weights have far to go
UNKNOWN = -1  # label that the train split does not have
READ = 1024  # examples read at once for predictions


class Probes(nn.Module):
    """G softmax classifiers, linear or with a hidden layer, each of a mixture of some layers.

    A mixture's weights are positive and sum to 1 (scalar mix, Peters et al. 2018); that of one
    layer is the layer. All probes start from the same weights.

    Args:
        layers: bool [G, layers], the layers that each probe reads.
        size: F, features of a layer.
        hidden: width of the hidden layer; None: linear.
    """

    others: Tensor

    def __init__(
        self, layers: npt.NDArray[np.bool_], size: int, labels: int, hidden: int | None, seed: int
    ) -> None:
        super().__init__()
        others = torch.zeros(layers.shape).masked_fill(torch.from_numpy(~layers), -math.inf)
        self.register_buffer("others", others)
        self.mix = nn.Parameter(torch.zeros(layers.shape))
        generator = torch.Generator().manual_seed(seed)
        self.matrices, self.biases = nn.ParameterList(), nn.ParameterList()
        widths = [size, labels] if hidden is None else [size, hidden, labels]
        for inner, outer in zip(widths, widths[1:], strict=False):
            matrix = (torch.rand(inner, outer, generator=generator) - 0.5) * 2 / math.sqrt(inner)
            self.matrices.append(matrix.repeat(len(layers), 1, 1))
            self.biases.append(torch.zeros(len(layers), 1, outer))

    @property
    def weights(self) -> Tensor:
        """Weights of the layers, fp32 [G, layers]."""
        return torch.softmax(self.mix + self.others, dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Map fp32 [B, layers, F] to logits, fp32 [G, B, labels]."""
        hidden = torch.einsum("gl,blf->gbf", self.weights, features)
        for number, (matrix, bias) in enumerate(zip(self.matrices, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden.relu() if number else hidden, matrix)
        return hidden


def standardize(train: Tensor, dev: Tensor) -> None:
    """Shift and scale features in place so that those of train have mean 0 and deviation 1.

    Layers of any scale are then equally easy to learn from. Both are fp32 [n, layers, F].
    """
    for layer in range(train.shape[1]):
        deviation, mean = torch.std_mean(train[:, layer].double(), dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1)
        for own in (train, dev):
            own[:, layer] = ((own[:, layer] - mean) / deviation).float()


def fit(probes: Probes, features: Sequence[Tensor], labels: Sequence[I64], seed: int) -> I64:
    """Train probes, and return their predictions for the dev split, int64 [G, n].

    Each stops on its own after PATIENCE epochs without a lower loss on dev, and keeps the weights
    of its best epoch: it learns what it would have learned alone.

    Args:
        features: standardized features of train and dev.
        labels: labels of train and dev for each probe, int64 [G, n]; UNKNOWN ones do not count.
    """
    device = probes.mix.device
    train, dev = (torch.from_numpy(own).to(device) for own in labels)
    groups: list[dict[str, Any]] = [{"params": [*probes.matrices, *probes.biases]}]
    groups.append({"params": [probes.mix], "lr": MIX_RATE})
    optimizer = torch.optim.Adam(groups, RATE)
    best = torch.full((len(dev),), math.inf, device=device)
    waited, predictions = torch.zeros_like(dev[:, 0]), torch.zeros_like(dev)
    kept = {name: weight.detach().clone() for name, weight in probes.named_parameters()}
    for epoch in range(EPOCHS):
        passes = range(max(1, EPOCH // train.shape[1]))
        order = np.concatenate([shuffled(train.shape[1], seed, epoch, own) for own in passes])
        for begin in range(0, len(order), BATCH):
            numbers = torch.from_numpy(order[begin : begin + BATCH])
            logits = probes(features[0][numbers].to(device))
            loss = _losses(logits, train[:, numbers.to(device)]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            parts = range(0, dev.shape[1], READ)
            rows = [features[1][begin : begin + READ].to(device) for begin in parts]
            logits = torch.cat([probes(own) for own in rows], dim=1)
        losses = _losses(logits, dev)
        better = (losses < best) & (waited < PATIENCE)
        best, waited = torch.where(better, losses, best), torch.where(better, 0, waited + 1)
        predictions[better] = logits.argmax(dim=2)[better]
        for name, weight in probes.named_parameters():
            kept[name][better] = weight.detach()[better]
        if bool((waited >= PATIENCE).all()):
            break
    probes.load_state_dict(kept, strict=False)
    return predictions.cpu().numpy()


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each probe, fp32 [G], from [G, B, labels] and int64 [G, B]."""
    losses = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=UNKNOWN, reduction="none"
    )
    return losses.sum(dim=1) / (labels != UNKNOWN).sum(dim=1).clamp(min=1)
