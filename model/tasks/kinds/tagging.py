"""The task kind tagging: a tag per word, such as named entities in CoNLL's column files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.ragged import I64
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.batch import IGNORE_INDEX
from cloze.model.tasks import metrics
from cloze.model.tasks.encode import FIRST, WordSamples, encode_words
from cloze.model.tasks.formats.columns import TaggedWords, read_columns
from cloze.model.tasks.formats.tag_schemes import Entity, entities, joined_labels
from cloze.model.tasks.heads import TokenClassifier
from cloze.model.tasks.options import TaggingOptions, TaskOptions
from cloze.model.tasks.task import Loss, Member, Metrics, Samples, Task, TaskMetadata, mean_array
from cloze.model.tasks.teacher import soft_loss
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

TAG_HEAD = "token_classifier"
UNKNOWN = "of_unknown_type"  # reason for a lost answer
PLAIN = ("accuracy", "macro_f1")  # metrics of plain labels, over words


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Predictions: tags of each sentence's words, and their probabilities, fp32 [words].

    Tags are in BIO, or plain labels.
    """

    tags: list[list[str]]
    scores: list[npt.NDArray[np.float32]]


class Tagging(Task[TaggedWords, Tags]):
    """Linear layer on the state of each word's first token (Devlin et al. 2019, 5.3).

    Trained by cross-entropy. Words get their most probable tag, without a transition model, as in
    the paper. The labels are a B- and an I- tag for every type in the training files, or their
    plain labels.
    """

    options: TaggingOptions
    metrics: tuple[str, ...] = metrics.TAGGING
    predictions = "predictions.txt"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        self._plain = self.options.scheme != "entities"
        if self._plain and not metrics:
            self.metrics = PLAIN
        file_names = [options.files.get(split, (f"{split}.txt",))[0] for split in ("train", "dev")]
        self.files = (
            f"a directory with {' and '.join(file_names)} (a word and its tag a line, a blank line "
            f"between sentences)"
        )

    def read(self, path: str, split: str, limit_per_class: int | None) -> TaggedWords:
        self.refuse_limit(limit_per_class, "; leave it out")
        return read_columns(path, split, self.options, self.files)

    def metadata(self, train: TaggedWords) -> TaskMetadata:
        return {"labels": train.labels(), "scheme": train.scheme}

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {TAG_HEAD: {"num_labels": len(metadata["labels"])}}

    def align_labels(self, examples: TaggedWords, metadata: TaskMetadata) -> TaggedWords:
        names = tuple(str(name) for name in metadata["labels"])
        examples.check(names)
        scheme = examples.scheme or metadata.get("scheme")
        return dataclasses.replace(examples, scheme=scheme, label_names=names)

    def encode(self, examples: TaggedWords, tokenizer: Tokenizer, max_length: int) -> WordSamples:
        labels = None
        if examples.tags is not None:
            tag_numbers = {name: i for i, name in enumerate(examples.label_names)}
            labels = [
                np.array([tag_numbers.get(tag, IGNORE_INDEX) for tag in tags])
                for tags in examples.tags
            ]
        documents = examples.documents if self.options.context == "document" else ()
        samples = encode_words(examples.words, tokenizer, max_length, labels, documents)
        names = examples.label_names  # none for probes, which have labels of their own
        unknown = examples.check(names) if names and labels is not None else 0
        return dataclasses.replace(samples, dropped_counts={UNKNOWN: unknown} if unknown else {})

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        return TokenClassifier(
            backbone, config.hidden_size, len(metadata["labels"]), dropout, TAG_HEAD
        )

    def count(self, batch: Mapping[str, Any]) -> int:
        """Return the number of words."""
        return int(batch[FIRST].sum())

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        labels = batch["labels"]
        total = nn.functional.cross_entropy(
            outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return Loss(total=total, correct=(outputs.argmax(dim=-1) == labels).sum())

    def soft_loss(
        self, outputs: Tensor, teacher: Tensor, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        return soft_loss(outputs, teacher, temperature, batch[FIRST])

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Return tag numbers, int64 [B, L], and probabilities, fp32 [B, L], of all positions."""
        most_probable = torch.softmax(outputs, dim=-1).max(dim=-1)
        return most_probable.indices, most_probable.values

    def decode(self, answers: Sequence[Any], examples: TaggedWords, samples: Samples) -> Tags:
        assert isinstance(samples, WordSamples)
        numbers, scores = (samples.by_sentence([row[i] for row in answers]) for i in range(2))
        names = examples.label_names
        return Tags(tags=[[names[tag] for tag in own] for own in numbers], scores=scores)

    def member_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the probabilities of all tags at all positions, fp32 [B, L, labels]."""
        return torch.softmax(outputs, dim=-1)

    def combine(self, members: Sequence[Member], examples: TaggedWords) -> Tags:
        """Return each word's most probable tag by the mean of the members' probabilities."""
        by_member = []
        for samples, answers in ((member.samples, member.answers) for member in members):
            assert isinstance(samples, WordSamples)
            by_member.append(samples.by_sentence(answers))
        means = [mean_array(sentences) for sentences in zip(*by_member, strict=True)]
        names = examples.label_names
        return Tags(
            tags=[[names[number] for number in mean.argmax(axis=1)] for mean in means],
            scores=[mean.max(axis=1) for mean in means],
        )

    def score(self, examples: TaggedWords, predictions: Tags) -> Metrics:
        assert examples.tags is not None
        if self._plain:
            return metrics.scores(self.metrics, *_numbers(examples.tags, predictions.tags)[:2])
        scores = metrics.tagging_scores(examples.tags, predictions.tags)
        return {name: scores[name] for name in self.metrics}

    def entities(self, tags: Sequence[str]) -> list[Entity]:
        """Return the entities of a sentence's tags; with plain labels every word is one."""
        if self.options.scheme == "joined":
            return joined_labels(tags)
        if self._plain:
            return [(tag, number, number) for number, tag in enumerate(tags)]
        return entities(tags)

    def dataset_statistics(self, examples: TaggedWords) -> dict[str, Any]:
        return {
            "words": sum(map(len, examples.words)),
            "scheme": examples.scheme,
            "misplaced_tags": examples.misplaced,
            "labels" if self._plain else "entities": examples.types(),
        }

    def detailed_metrics(
        self, examples: TaggedWords, predictions: Tags, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        assert examples.tags is not None
        if self._plain:
            labels, predicted, sentences = _numbers(examples.tags, predictions.tags)
            return {
                "interval": metrics.classification_intervals(
                    self.metrics, labels, predicted, seed, resamples, sentences
                )
            }
        return {
            "interval": {
                "f1": metrics.tagging_f1_interval(examples.tags, predictions.tags, seed, resamples)
            },
            "by_type": metrics.tagging_scores_by_type(examples.tags, predictions.tags),
        }

    def write_predictions(self, directory: str, examples: TaggedWords, predictions: Tags) -> None:
        """Write the file's lines with an additional column of predicted tags, in its scheme."""
        lines = "".join(f"{line}\n" for line in examples.rows(predictions.tags))
        storage.write_bytes(storage.join(directory, self.predictions), lines.encode("utf-8"))


def _numbers(gold: metrics.Tags, predicted: metrics.Tags) -> tuple[I64, I64, I64]:
    """Return the numbers of the words' labels and predictions, and of their sentences."""
    words = [[tag for tags in side for tag in tags] for side in (gold, predicted)]
    number = {name: i for i, name in enumerate(sorted({*words[0], *words[1]}))}
    labels, predictions = (np.array([number[tag] for tag in side], np.int64) for side in words)
    return labels, predictions, np.repeat(np.arange(len(gold)), [len(tags) for tags in gold])
