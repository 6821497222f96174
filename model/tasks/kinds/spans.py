"""The task kind spans: extractive question answering, SQuAD 1.1 and 2.0.

Decoding follows `write_predictions` in google-research/bert's run_squad.py, with two differences.
It searches all valid spans, not only the best 20 starts and ends. It copies an answer's text from
the passage, by the characters of the tokens.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks.files import split_files
from cloze.model.tasks.formats.squad import (
    MRQA,
    TABLES,
    SquadExamples,
    counts,
    mended,
    read_squad,
)
from cloze.model.tasks.heads import TokenClassifier
from cloze.model.tasks.metrics import Floats, best_threshold, mean_interval, question_scores
from cloze.model.tasks.options import SpanOptions, TaskOptions
from cloze.model.tasks.span_windows import (
    BOUNDS,
    ENDS,
    STARTS,
    Windows,
    WindowSpans,
    encode_questions,
    finite_spans,
    real_logits,
)
from cloze.model.tasks.task import Loss, Member, Metrics, Samples, Task, TaskMetadata, mean_array
from cloze.model.tasks.teacher import soft_loss
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

PREDICTIONS, N_BEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


class Span(NamedTuple):
    """Answer: text, start and end characters in the passage, and logits."""

    text: str
    begin: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPredictions:
    """Predictions for a question.

    Attributes:
        spans: best answers with distinct texts, best first; empty for a passage without tokens.
        null: start and end logit of "no answer", from the window with the lowest sum.
    """

    spans: tuple[Span, ...]
    null: tuple[float, float]

    @property
    def null_odds(self) -> float:
        """Score of "no answer" minus score of the best answer, in logits."""
        return sum(self.null) - (self.spans[0].score if self.spans else 0.0)

    @property
    def text(self) -> str:
        """Text of the best answer; empty if there is none."""
        return self.spans[0].text if self.spans else ""

    def ranked(self, threshold: float | None) -> list[tuple[Span | None, float]]:
        """Return answers with normalized probabilities, most probable first.

        Args:
            threshold: logits to subtract from the score of "no answer" (None); None: exclude it.
        """
        entries: list[Span | None] = [*self.spans]
        scores = [span.score for span in self.spans]
        if threshold is not None or not entries:
            entries.append(None)
            scores.append(sum(self.null) - (threshold or 0.0))
        weights = np.exp(np.array(scores) - max(scores))
        pairs = zip(entries, (weights / weights.sum()).tolist(), strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])  # on ties an answer precedes "no answer"


Predictions = Sequence[QuestionPredictions]


def window_spans(logits: Tensor, bounds: Tensor, n_best: int, longest: int) -> tuple[Tensor, ...]:
    """Return the best spans of every window of a batch, as the fields of `WindowSpans`.

    With fewer than `n_best` spans, the start logits of the rest are minus infinity.

    Args:
        logits: fp32 [B, L, 2], of starts and ends.
        bounds: int64 [B, 4], see `Windows`: spans start in the counting part and end in the
            passage.
        n_best: maximum number of spans.
        longest: maximum tokens of a span.
    """
    positions = torch.arange(logits.shape[1], device=logits.device)
    passage_begin, passage_end, counted_begin, counted_end = (
        bounds[:, i : i + 1] for i in range(4)
    )
    start_logits = logits[..., 0].masked_fill(
        (positions < counted_begin) | (positions >= counted_end), -torch.inf
    )
    end_logits = logits[..., 1].masked_fill(
        (positions < passage_begin) | (positions >= passage_end), -torch.inf
    )
    width = min(longest, logits.shape[1])
    # End logits of the `width` spans from each position: [B, L, width].
    end_windows = functional.pad(end_logits, (0, width - 1), value=-torch.inf).unfold(1, width, 1)
    span_scores = (start_logits[:, :, None] + end_windows).flatten(1)
    scores, span_indices = span_scores.topk(min(n_best, span_scores.shape[1]), dim=1)
    starts = span_indices // width
    # Spans beyond the end have an infinitely low score.
    stops = (starts + span_indices % width).clamp(max=logits.shape[1] - 1)
    begin_logits = start_logits.gather(1, starts).masked_fill(~scores.isfinite(), -torch.inf)
    return starts, stops, begin_logits, end_logits.gather(1, stops), logits[:, 0]


def merge_windows(
    answers: Sequence[WindowSpans], examples: SquadExamples, samples: Windows, n_best: int
) -> list[QuestionPredictions]:
    """Merge the windows of each question."""
    passage_starts = samples.targets[BOUNDS][:, 0]
    predictions = []
    edges = np.searchsorted(samples.question, np.arange(len(examples) + 1)).tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        passage = examples.passage_of[number]
        text, offsets = examples.passages[passage], samples.offsets[passage]
        spans: list[Span] = []
        for window in range(begin, end):
            shift = int(samples.begin[window] - passage_starts[window])
            spans += _spans(answers[window], shift, text, offsets)
        spans.sort(key=lambda span: (-span.score, span.begin, span.end))
        distinct: dict[str, Span] = {}
        for span in spans:
            distinct.setdefault(span.text, span)  # the best one
        null = min((answers[window].null for window in range(begin, end)), key=sum)
        best = tuple(itertools.islice(distinct.values(), n_best))
        predictions.append(QuestionPredictions(spans=best, null=null))
    return predictions


def _spans(
    answer: WindowSpans, shift: int, text: str, offsets: npt.NDArray[np.int64]
) -> list[Span]:
    begins = offsets[answer.starts + shift, 0].tolist()
    ends = offsets[answer.ends + shift, 1].tolist()
    logits = zip(answer.start_logits.tolist(), answer.end_logits.tolist(), strict=True)
    return [
        Span(text[begin:end], begin, end, start_logit, end_logit)
        for begin, end, (start_logit, end_logit) in zip(begins, ends, logits, strict=True)
        if text[begin:end].strip()
    ]


def write_official(
    directory: str,
    examples: SquadExamples,
    texts: Sequence[str],
    predictions: Predictions,
    *,
    null: bool,
) -> None:
    """Write the files of run_squad.py: predictions, n-best lists, and with `null` the null odds."""
    by_id = dict(zip(examples.ids, predictions, strict=True))
    n_best = {
        identity: [
            {
                "text": "" if span is None else span.text,
                "probability": probability,
                "start_logit": own.null[0] if span is None else span.start_logit,
                "end_logit": own.null[1] if span is None else span.end_logit,
            }
            for span, probability in own.ranked(0.0 if null else None)
        ]
        for identity, own in by_id.items()
    }
    files: dict[str, Any] = {
        PREDICTIONS: dict(zip(examples.ids, texts, strict=True)),
        N_BEST: n_best,
    }
    if null:
        files[NULL_ODDS] = {identity: own.null_odds for identity, own in by_id.items()}
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        storage.write_bytes(storage.join(directory, name), text.encode("utf-8", "surrogatepass"))


# The task.

SPAN_HEAD = "span"
SMALLEST = 16  # tokens: minimum window for a question and an answer


class Spans(Task[SquadExamples, Predictions]):
    """Start and end logits per position (Devlin et al. 2019, figure 4c, sections 4.2 and 4.3).

    Trained by the mean of both cross-entropies over the positions of the sequence. Unanswerable
    questions, and windows without the answer, point at [CLS].
    """

    options: SpanOptions
    metrics: tuple[str, ...] = ("f1", "exact_match")
    max_length = 384
    predictions = PREDICTIONS

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        file_names = [names[0] for names in options.files.values()] or ["train.json", "dev.json"]
        self.files = (
            f"a directory with {' and '.join(file_names[:2])}, in the JSON of SQuAD or MRQA, "
            f"or a data set of the Hub"
        )

    def read(self, path: str, split: str, limit_per_class: int | None) -> SquadExamples:
        self.refuse_limit(limit_per_class, ", which has no classes")
        names = split_files(path, split, self.options, (".json", *MRQA, *TABLES), self.files)
        drop = self.options.irregular == "drop" or split == "train"
        return read_squad(*names, unanswerable=self.options.unanswerable, drop=drop)

    def metadata(self, train: SquadExamples) -> TaskMetadata:
        return {}

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {SPAN_HEAD: {}}

    def encode(self, examples: SquadExamples, tokenizer: Tokenizer, max_length: int) -> Windows:
        """Encode questions into windows.

        Raises:
            UsageError: `max_length` leaves no room for a passage.
        """
        if max_length < SMALLEST:
            raise UsageError(
                f"max_length ({max_length}) leaves no room for question and passage; use "
                f"{SMALLEST} or more"
            )
        return encode_questions(examples, tokenizer, max_length, self.options)

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        return TokenClassifier(backbone, config.hidden_size, 2, dropout, SPAN_HEAD)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch[STARTS])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        logits = real_logits(outputs, batch)
        targets = torch.stack([batch[STARTS], batch[ENDS]], dim=1)  # [B, 2]
        total = nn.functional.cross_entropy(logits, targets, reduction="sum") / 2
        return Loss(total=total, correct=(logits.argmax(dim=1) == targets).all(dim=1).sum())

    def soft_loss(
        self, outputs: Tensor, teacher: Tensor, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        """Compute the divergences of start and end, half of each."""
        own, other = (real_logits(item, batch).transpose(1, 2) for item in (outputs, teacher))
        loss = soft_loss(own, other, temperature)
        return Loss(total=loss.total / 2, correct=loss.correct / 2)

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, ...]:
        return window_spans(outputs, batch[BOUNDS], self.options.n_best, self.options.answer_length)

    def decode(
        self, answers: Sequence[Any], examples: SquadExamples, samples: Samples
    ) -> Predictions:
        assert isinstance(samples, Windows)
        windows = [finite_spans(rows) for rows in answers]
        return merge_windows(windows, examples, samples, self.options.n_best)

    def member_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the start and end logits of all positions, fp32 [B, L, 2]."""
        return outputs

    def combine(self, members: Sequence[Member], examples: SquadExamples) -> Predictions:
        """Return the best spans by the mean of the members' start and end logits.

        Raises:
            UsageError: the members read the questions in different windows.
        """
        samples, *others = (member.samples for member in members)
        assert isinstance(samples, Windows)
        samples.check_equal(others)
        bounds = torch.from_numpy(samples.targets[BOUNDS])
        answers = []
        for number, logits in enumerate(zip(*(member.answers for member in members), strict=True)):
            mean = torch.from_numpy(mean_array(logits))[None]
            rows = self.select_outputs(mean, {BOUNDS: bounds[number : number + 1]})
            answers.append([row[0].numpy() for row in rows])
        return self.decode(answers, examples, samples)

    def texts(self, predictions: Predictions) -> list[str]:
        """Return the answer texts; empty for "no answer"."""
        if not self.options.unanswerable:
            return [prediction.text for prediction in predictions]
        threshold = self.options.null_threshold or 0.0
        return [
            "" if prediction.null_odds > threshold else prediction.text
            for prediction in predictions
        ]

    def tuned_options(self, examples: SquadExamples, predictions: Predictions) -> dict[str, Any]:
        """Return the "no answer" threshold with the best F1 on dev, unless configured."""
        if not self.options.unanswerable or self.options.null_threshold is not None:
            return {}
        return {"null_threshold": self._best(examples, predictions)["best_f1_thresh"]}

    def score(self, examples: SquadExamples, predictions: Predictions) -> Metrics:
        """Return F1 and exact match.

        With unanswerable questions, also the metrics of evaluate-v2.0.py for both kinds of
        questions and the best threshold.
        """
        exact, f1 = self._scores(examples, self.texts(predictions))
        figures = {"f1": _mean(f1), "exact_match": _mean(exact)}
        if self.options.unanswerable:
            answerable = examples.answerable
            for name, selected in (("HasAns", answerable), ("NoAns", ~answerable)):
                if selected.any():
                    figures |= {
                        f"{name}_exact": _mean(exact[selected]),
                        f"{name}_f1": _mean(f1[selected]),
                    }
            figures |= self._best(examples, predictions)
        return figures

    def dataset_statistics(self, examples: SquadExamples) -> dict[str, Any]:
        return {"questions": {**counts(examples), **mended(examples)}}

    def detailed_metrics(
        self, examples: SquadExamples, predictions: Predictions, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        exact, f1 = self._scores(examples, self.texts(predictions))
        scores = {"f1": f1, "exact_match": exact}
        intervals = {
            name: mean_interval(values, seed, resamples) for name, values in scores.items()
        }
        return {"interval": intervals}

    def write_predictions(
        self, directory: str, examples: SquadExamples, predictions: Predictions
    ) -> None:
        """Write `predictions.json` (id to text), `nbest_predictions.json` and `null_odds.json`."""
        texts, null = self.texts(predictions), self.options.unanswerable
        write_official(directory, examples, texts, predictions, null=null)

    def _scores(self, examples: SquadExamples, texts: Sequence[str]) -> tuple[Floats, Floats]:
        assert examples.answers is not None
        return question_scores(texts, examples.references(), unanswerable=self.options.unanswerable)

    def _best(self, examples: SquadExamples, predictions: Predictions) -> Metrics:
        """Return the best metrics over all thresholds, with evaluate-v2.0.py's names."""
        texts = [prediction.text for prediction in predictions]
        exact, f1 = self._scores(examples, texts)
        empty = np.array([not text for text in texts])
        odds = np.array([prediction.null_odds for prediction in predictions])
        figures: Metrics = {}
        for name, scores in (("exact", exact), ("f1", f1)):
            figures[f"best_{name}"], figures[f"best_{name}_thresh"] = best_threshold(
                scores, odds, examples.answerable, empty
            )
        return figures


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0
