"""The task kind text-to-text: an encoder-decoder writes a text for a text (Raffel et al., 2020).

    prefix + input -> [CLS] … [SEP] -> encoder;   target -> … [SEP] -> decoder

Inputs and targets are columns of a table (`cloze.model.tasks.formats.texts`), so a file of
classification becomes one of this kind by its options: the label is the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import UsageError, require_packages
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext
from cloze.labs.seq2seq.decoder import BeamSearch, EncoderDecoder, Seq2SeqModel, generate
from cloze.labs.seq2seq.denoising import target_loss
from cloze.labs.seq2seq.encoder_decoder import EncoderDecoderConfig
from cloze.labs.seq2seq.noise import padded
from cloze.labs.seq2seq.rag import RETRIEVAL, RagNetwork, RagPassages, load_retrieval, marginal_loss
from cloze.labs.seq2seq.stages import (
    EXACT_MATCH,
    TEXT_METRICS,
    VECTORS,
    TextToTextOptions,
    packages,
)
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.data.layouts import LayoutKind
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.batch import IGNORE_INDEX, Batch, extend
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.tasks.files import write_rows
from cloze.model.tasks.formats.tables import describe_columns
from cloze.model.tasks.formats.texts import TextExamples, read_rows, shared_fields
from cloze.model.tasks.metrics import mean_interval
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.task import Loss, Metrics, Samples, Task, TaskMetadata
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

TEXT_TO_TEXT_HEAD = "seq2seq"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTargets(TextExamples):
    """Texts with the texts that are to be written, or None."""

    targets: Sequence[str] | None

    @property
    def labelled(self) -> bool:
        return self.targets is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSamples(TextSamples):
    """Samples with the tokens that are to be written.

    Attributes:
        labels: int64 [T_i] each, ending with [SEP]; None if unknown.
        pieces: tokenizer of the samples.
    """

    labels: tuple[npt.NDArray[np.int64], ...] | None
    pieces: Tokenizer

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind = "rows") -> Batch:
        """Return `TextSamples.batch` with `target_labels`, int64 [B, T], if they are known."""
        batch = TextSamples.batch(self, indices, layout)
        if self.labels is None:
            return batch
        return extend(
            batch, {"target_labels": padded([self.labels[i] for i in indices], IGNORE_INDEX)}
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A text that was written; `exact`: its tokens are those of the target."""

    text: str
    exact: bool


class TextToTextNetwork(Seq2SeqModel):
    """Encoder-decoder that scores the target where it learns, and else writes one.

    Args:
        search: search for the text.
    """

    def __init__(self, encoder: EncoderDecoder, smoothing: float, search: BeamSearch) -> None:
        super().__init__(encoder, smoothing)
        self.search = search

    def forward(self, batch: Any) -> Any:
        """Return `seq2seq_logits`, [B, T, V]; without gradient ids, int64 [B, T], padded."""
        memory = self.encoder.memory_of(batch["input_ids"], batch["attention_mask"])
        if not torch.is_grad_enabled():
            return generate(self.encoder, memory, self.search)
        outputs = {"seq2seq_logits": self.encoder.target_logits(memory, batch["target_labels"])}
        if self.training and self.label_smoothing:
            outputs["label_smoothing"] = memory.states.new_tensor(self.label_smoothing)
        return outputs


class TextToText(Task[TextTargets, "list[Written]"]):
    """A text per example, trained by cross-entropy; metrics: `TEXT_METRICS`."""

    options: TextToTextOptions
    metrics: tuple[str, ...] = (EXACT_MATCH,)
    own_metrics: ClassVar[tuple[str, ...]] = (EXACT_MATCH,)
    max_length = 512

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        self.metrics = self.options.metrics or self.metrics
        self._packages = packages(self.metrics, self.own_metrics)
        self.files = describe_columns(self.options)
        self._retrieval: RagPassages | None = None  # of a training with passages

    def read(self, path: str, split: str, limit_per_class: int | None) -> TextTargets:
        self.refuse_limit(limit_per_class, ", whose answers are texts")
        require_packages(*self._packages)  # before a training, not after it
        examples, answers = read_rows(path, split, self.options, self.files)
        return TextTargets(**shared_fields(examples), targets=answers)

    def open(
        self, build: BuildContext, start: LoadedCheckpoint, pieces: Tokenizer, most: int | None
    ) -> TaskMetadata:
        vectors = build.inputs.get(VECTORS)
        if vectors is None:
            return super().open(build, start, pieces, most)
        # The other half of the positions is for a passage.
        most = most or min(self.max_length, start.model.max_position_embeddings // 2)
        self._retrieval = load_retrieval(vectors, build, pieces, start.model, most)
        return {"max_length": most, RETRIEVAL: self._retrieval.metadata}

    def metadata(self, train: TextTargets) -> TaskMetadata:
        return {}

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {TEXT_TO_TEXT_HEAD: {}}

    def encode(self, examples: TextTargets, tokenizer: Tokenizer, max_length: int) -> TargetSamples:
        texts = [self.options.prefix + text for text in examples.texts]
        framed = encode(texts, examples.text_pairs, tokenizer, max_length)
        labels, truncated = None, framed.truncated
        if examples.targets is not None:
            most, end = self.options.target_length - 1, [tokenizer.special.sep]
            tokens = tokenizer.encode_batch(list(examples.targets))
            truncated += sum(len(ids) > most for ids in tokens)
            labels = tuple(np.array([*ids[:most], *end], dtype=np.int64) for ids in tokens)
        return TargetSamples(
            sequences=framed.sequences,
            second=framed.second,
            truncated=truncated,
            pad=framed.pad,
            typed=False,
            labels=labels,
            pieces=tokenizer,
        )

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        if not isinstance(config, EncoderDecoderConfig):
            raise UsageError(
                f"task {self.name} needs an encoder-decoder, and this checkpoint is a "
                f"{config.family} model; name one of t5, bart or transformer"
            )
        search = BeamSearch(
            beams=self.options.beams,
            length_penalty=self.options.length_penalty,
            tokens=self.options.target_length,
        )
        encoder = cast(EncoderDecoder, backbone.encoder)
        if RETRIEVAL in metadata:
            options, values = self.options, metadata[RETRIEVAL]
            return RagNetwork(
                encoder, values, options.passages, options.marginal, search, self._retrieval
            )
        return TextToTextNetwork(encoder, config.label_smoothing, search)

    def count(self, batch: Mapping[str, Any]) -> int:
        return int((batch["target_labels"] != IGNORE_INDEX).sum())

    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Loss:
        """Compute cross-entropy of the target's tokens in nats, smoothed as the model's config, or
        with retrieval `marginal_loss`.
        """
        if "prior" in outputs:
            return marginal_loss(outputs, batch["target_labels"], self.options.marginal)
        smoothing = outputs.get("label_smoothing", 0.0)
        total, correct = target_loss(outputs["seq2seq_logits"], batch["target_labels"], smoothing)
        return Loss(total=total, correct=correct)

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the ids that were written, [B, T]."""
        return outputs

    def decode(
        self, answers: Sequence[Any], examples: TextTargets, samples: Samples
    ) -> list[Written]:
        assert isinstance(samples, TargetSamples)
        end = samples.pieces.special.sep
        written = []
        for number, answer in enumerate(answers):
            ids = cut(answer, end)
            exact = samples.labels is not None and ids == samples.labels[number][:-1].tolist()
            text = samples.pieces.backend.decode(ids, skip_special_tokens=True)
            written.append(Written(text, exact))
        return written

    def score(self, examples: TextTargets, predictions: list[Written]) -> Metrics:
        texts, targets = [own.text for own in predictions], list(examples.targets or ())
        exact = float(np.mean([own.exact for own in predictions]))
        return {
            name: exact if name == "exact_match" else TEXT_METRICS[name][1](texts, targets)
            for name in self.metrics
        }

    def baselines(self, examples: TextTargets) -> Metrics:
        """Return the score of always writing the most frequent target."""
        targets = list(examples.targets or ())
        ((most, count),) = Counter(targets).most_common(1)
        name = self.metrics[0]
        if name == "exact_match":
            return {"majority": count / len(targets)}
        return {"majority": TEXT_METRICS[name][1]([most] * len(targets), targets)}

    def detailed_metrics(
        self, examples: TextTargets, predictions: list[Written], *, seed: int, resamples: int
    ) -> dict[str, Any]:
        if "exact_match" not in self.metrics:
            return {}
        exact = np.array([float(own.exact) for own in predictions])
        return {"interval": {"exact_match": mean_interval(exact, seed, resamples)}}

    def write_predictions(
        self, directory: str, examples: TextTargets, predictions: list[Written]
    ) -> None:
        """Write index, text, text_pair, label (the target) and prediction."""
        columns = {
            "index": examples.ids or [str(i) for i in range(len(examples))],
            "text": examples.texts,
            **({} if examples.text_pairs is None else {"text_pair": examples.text_pairs}),
            "label": examples.targets or [""] * len(examples),
            "prediction": [own.text for own in predictions],
        }
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        write_rows(storage.join(directory, self.predictions), rows)


def cut(ids: Sequence[int] | npt.NDArray[Any], end: int) -> list[int]:
    """Return the ids before the first end token."""
    numbers = [int(number) for number in ids]
    return numbers[: numbers.index(end)] if end in numbers else numbers
