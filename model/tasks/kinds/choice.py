"""The task kind choice: select one of several endings of a context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.model.data.layouts import LayoutKind
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.batch import Batch, extend
from cloze.model.tasks import metrics
from cloze.model.tasks.encode import TextSamples, framed
from cloze.model.tasks.files import write_rows
from cloze.model.tasks.formats.choices import Choices, read_choices
from cloze.model.tasks.formats.tables import describe_columns
from cloze.model.tasks.heads import SequenceClassifier
from cloze.model.tasks.options import ChoiceOptions, TaskOptions
from cloze.model.tasks.task import Loss, Member, Metrics, Samples, Task, TaskMetadata, mean_array
from cloze.model.tasks.teacher import soft_loss
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

CHOICE_HEAD = "choice"
# Batch entry: index of the logits of an example's endings, int64 [B, K], -1 for none.
ENDINGS = "endings"
# Tokens of question and option to keep when truncating the context: `max_qa_length` of ALBERT's
# run_race.py.
LONGEST_ENDING = 128
Probabilities = Sequence[npt.NDArray[np.float32]]  # [K_i] per example


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSamples:
    """Samples that are examples: a context with each of its K_i endings.

    Attributes:
        sequences: sequences of all examples, concatenated.
        counts: int64 [n], endings per example.
        targets: inputs of the loss by their name in a batch; one row per example.
    """

    sequences: TextSamples
    counts: I64
    truncated: int
    targets: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    dropped_counts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def lengths(self) -> I64:
        """Tokens of each example, over all sequences."""
        totals = offsets_of(self.sequences.lengths)[offsets_of(self.counts)]
        return np.diff(totals)

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind = "rows") -> Batch:
        """Return a `TextSamples` batch of all sequences, [sum of K, L], `ENDINGS` and targets."""
        numbers = np.asarray(indices, dtype=np.int64)
        counts = self.counts[numbers]
        sequence_numbers = ranges(offsets_of(self.counts)[:-1][numbers], counts)
        columns = np.arange(counts.max())
        logit_indices = np.where(
            columns < counts[:, None], offsets_of(counts)[:-1, None] + columns, -1
        )
        arrays = {ENDINGS: logit_indices} | {
            name: target[numbers] for name, target in self.targets.items()
        }
        fields = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return extend(self.sequences.batch(sequence_numbers, layout), fields)


class Choice(Task[Choices, Probabilities]):
    """Linear output per ending, trained by cross-entropy over an example's endings.

    As in Devlin et al. 2019, section 4.4 (SWAG): the context is the first sequence, the ending the
    second.
    """

    options: ChoiceOptions
    metrics: tuple[str, ...] = ("accuracy",)

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        if self.options.layout == "race":
            self.files = "a directory with train, dev and test, of passages in JSON (*.txt)"
            self.max_length = 512
        elif self.options.layout == "wsc":
            self.files = "a directory with train.jsonl and val.jsonl of SuperGLUE's WSC"
        else:
            self.files = describe_columns(self.options, ("context", "start", "label"))

    def read(self, path: str, split: str, limit_per_class: int | None) -> Choices:
        self.refuse_limit(limit_per_class, ", which has no classes")
        return read_choices(path, split, self.options, self.files)

    def metadata(self, train: Choices) -> TaskMetadata:
        return {"labels": list(train.label_names)}

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {CHOICE_HEAD: {}}

    def encode(self, examples: Choices, tokenizer: Tokenizer, max_length: int) -> ChoiceSamples:
        counts = np.array([len(endings) for endings in examples.endings], dtype=np.int64)
        numbers = np.repeat(np.arange(len(examples)), counts)
        contexts = tokenizer.encode_batch(list(examples.contexts))
        endings = tokenizer.encode_batch(
            [ending for example_endings in examples.endings for ending in example_endings]
        )
        first_texts, truncated = [contexts[i] for i in numbers], np.zeros(len(numbers), dtype=bool)
        room = max_length - tokenizer.frame_size(pair=True)
        for index, (context, ending) in enumerate(zip(first_texts, endings, strict=True)):
            truncated[index] = len(context) + len(ending) > room
            if self.options.truncate == "context":
                shortened = ending[-min(LONGEST_ENDING, room // 2) :]
                truncated[index] |= len(shortened) < len(ending)
                first_texts[index], endings[index] = context[: room - len(shortened)], shortened
        targets = {} if examples.labels is None else {"labels": _labels(examples)}
        sequences = framed(first_texts, endings, tokenizer, max_length)
        # The ending, with its question, is global in a Longformer (Beltagy et al. 2020, section 6).
        global_tokens = np.stack([sequences.second, sequences.lengths], axis=1)
        return ChoiceSamples(
            sequences=replace(sequences, global_tokens=global_tokens),
            counts=counts,
            truncated=len(np.unique(numbers[truncated])),
            targets=targets,
        )

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        return SequenceClassifier(
            backbone.encoder, backbone.pooler, config.hidden_size, 1, dropout, CHOICE_HEAD
        )

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        logits, labels = _by_example(outputs, batch), batch["labels"]
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return Loss(total=total, correct=(logits.argmax(dim=-1) == labels).sum())

    def soft_loss(
        self, outputs: Tensor, teacher: Tensor, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        return soft_loss(_by_example(outputs, batch), _by_example(teacher, batch), temperature)

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the probabilities of each example's endings, [B, K]; 0 for missing endings."""
        return torch.softmax(_by_example(outputs, batch), dim=-1)

    def decode(self, answers: Sequence[Any], examples: Choices, samples: Samples) -> Probabilities:
        return [row[: len(own)] for row, own in zip(answers, examples.endings, strict=True)]

    def member_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        return self.select_outputs(outputs, batch)

    def combine(self, members: Sequence[Member], examples: Choices) -> Probabilities:
        decoded = (self.decode(member.answers, examples, member.samples) for member in members)
        return [mean_array(rows) for rows in zip(*decoded, strict=True)]

    def score(self, examples: Choices, predictions: Probabilities) -> Metrics:
        return metrics.scores(self.metrics, _labels(examples), _best(predictions))

    def baselines(self, examples: Choices) -> Metrics:
        """Return the accuracy of random guessing."""
        return {"chance": float(np.mean([1.0 / len(endings) for endings in examples.endings]))}

    def dataset_statistics(self, examples: Choices) -> dict[str, Any]:
        counts = Counter(map(len, examples.endings))
        return {"endings": {str(number): counts[number] for number in sorted(counts)}}

    def detailed_metrics(
        self, examples: Choices, predictions: Probabilities, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        intervals = metrics.classification_intervals(
            self.metrics, _labels(examples), _best(predictions), seed, resamples
        )
        return {"interval": intervals}

    def write_predictions(
        self, directory: str, examples: Choices, predictions: Probabilities
    ) -> None:
        """Write columns index, context, label, prediction, score (its probability) and ending."""
        names = examples.label_names
        rows = [
            {
                "index": examples.ids[i] if examples.ids else str(i),
                "context": examples.contexts[i],
                "label": "" if examples.labels is None else names[examples.labels[i]],
                "prediction": names[predicted],
                "score": f"{predictions[i][predicted]:.6f}",
                "ending": examples.endings[i][predicted],
            }
            for i, predicted in enumerate(_best(predictions))
        ]
        write_rows(storage.join(directory, self.predictions), rows)


def _by_example(outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Map logits [sum of K, 1] to [B, K], with minus infinity for missing endings."""
    indices = batch[ENDINGS]
    return outputs.squeeze(-1)[indices.clamp(min=0)].masked_fill(indices < 0, -torch.inf)


def _labels(examples: Choices) -> npt.NDArray[np.int64]:
    return np.array(examples.labels, dtype=np.int64)


def _best(predictions: Probabilities) -> npt.NDArray[np.int64]:
    return np.array([row.argmax() for row in predictions], dtype=np.int64)
