"""The kind of task that gives every word a tag: named entities, in the column files of CoNLL's shared tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.models import Backbone
from model.layers.batch import IGNORE
from model.tasks.formats.columns import TaggedWords, read_columns
from model.tasks.formats.schemes import OUTSIDE
from model.tasks.heads import TokenClassifier
from model.tasks.metrics import tagging as metrics
from model.tasks.options import TaggingOptions, TaskOptions
from model.tasks.task import Figures, Loss, Meaning, Samples, Task
from model.tasks.words import FIRST, WordSamples, encode_words
from pipeline.core import storage
from pipeline.tokenizer.tokenizer import Tokenizer

HEAD = "token_classifier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered(TaggedWords):
    """Sentences whose tags are numbered as a network numbers them: `label_names`, all of them in BIO."""

    label_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Predictions: of each sentence the tags of its words, in BIO, and their probabilities, fp32 [words]."""

    tags: list[list[str]]
    scores: list[npt.NDArray[np.float32]]


class Tagging(Task[TaggedWords, Tags]):
    """One linear layer on the state of every word's first piece (Devlin et al. 2019, 5.3), trained by cross-entropy.

    Each word's likeliest tag is its tag; there is no transition model, as in the paper. Training has a B- and an I- tag of every type
    that its files hold.
    """

    metrics = metrics.METRICS
    predictions = "predictions.txt"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        named = [options.files.get(split, (f"{split}.txt",))[0] for split in ("train", "dev")]
        self.files = f"a directory with {' and '.join(named)} (a word and its tag a line, a blank line between sentences)"

    def read(self, path: str, split: str, limit_per_class: int | None) -> TaggedWords:
        assert isinstance(self.options, TaggingOptions)
        self.refuse_limit(limit_per_class, "; leave it out")
        return read_columns(path, split, self.options, self.files)

    def meaning(self, train: TaggedWords) -> Meaning:
        labels = [OUTSIDE, *(f"{prefix}-{kind}" for kind in train.types() for prefix in "BI")]
        return {"labels": labels, "scheme": train.scheme}

    def heads(self, meaning: Meaning) -> dict[str, Any]:
        return {HEAD: {"num_labels": len(meaning["labels"])}}

    def adopt(self, examples: TaggedWords, meaning: Meaning) -> Numbered:
        names = tuple(str(name) for name in meaning["labels"])
        examples.check([name[2:] for name in names if name.startswith("B-")])
        fields = {field.name: getattr(examples, field.name) for field in dataclasses.fields(TaggedWords)}
        return Numbered(**{**fields, "scheme": examples.scheme or meaning.get("scheme")}, label_names=names)

    def encode(self, examples: TaggedWords, tokenizer: Tokenizer, max_length: int) -> WordSamples:
        assert isinstance(examples, Numbered)
        labels = None
        if examples.tags is not None:
            number = {name: i for i, name in enumerate(examples.label_names)}
            labels = [np.array([number[tag] for tag in tags], dtype=np.int64) for tags in examples.tags]
        return encode_words(examples.words, tokenizer, max_length, labels)

    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        return TokenClassifier(backbone, config.hidden_size, len(meaning["labels"]), dropout, HEAD)

    def count(self, batch: Mapping[str, Any]) -> int:
        """Words."""
        return int(batch[FIRST].sum())

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        labels = batch["labels"]
        total = nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
        return Loss(total=total, correct=(outputs.argmax(dim=-1) == labels).sum())

    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sequence[Any]:
        """Of each window the numbers of its words' likeliest tags, int64 [n], and their probabilities, fp32 [n]."""
        best = torch.softmax(outputs, dim=-1).max(dim=-1)
        first, numbers, scores = (tensor.cpu().numpy() for tensor in (batch[FIRST], best.indices, best.values))
        return [(numbers[row, first[row]], scores[row, first[row]]) for row in range(len(first))]

    def decode(self, answers: Sequence[Any], examples: TaggedWords, samples: Samples) -> Tags:
        assert isinstance(examples, Numbered)
        assert isinstance(samples, WordSamples)
        tags: list[list[str]] = [[OUTSIDE] * len(words) for words in examples.words]
        scores = [np.zeros(len(words), dtype=np.float32) for words in examples.words]
        for window, (numbers, probabilities) in zip(samples.windows, answers, strict=True):
            begin, end = window.own
            tags[window.sentence][begin:end] = [examples.label_names[number] for number in numbers]
            scores[window.sentence][begin:end] = probabilities
        return Tags(tags=tags, scores=scores)

    def score(self, examples: TaggedWords, predictions: Tags) -> Figures:
        assert examples.tags is not None
        found = metrics.score(examples.tags, predictions.tags)
        return {name: found[name] for name in self.metrics}

    def facts(self, examples: TaggedWords) -> dict[str, Any]:
        return {
            "words": sum(map(len, examples.words)),
            "scheme": examples.scheme,
            "misplaced_tags": examples.misplaced,
            "entities": examples.types(),
        }

    def details(self, examples: TaggedWords, predictions: Tags, *, seed: int, resamples: int) -> dict[str, Any]:
        assert examples.tags is not None
        return {
            "interval": {"f1": list(metrics.f1_interval(examples.tags, predictions.tags, seed, resamples))},
            "by_type": metrics.by_type(examples.tags, predictions.tags),
        }

    def write(self, directory: str, examples: TaggedWords, predictions: Tags) -> None:
        """The file's own lines with the predicted tag as a further column, in the scheme of the file."""
        lines = "".join(f"{line}\n" for line in examples.rows(predictions.tags))
        storage.write_bytes(storage.join(directory, self.predictions), lines.encode("utf-8"))
