"""The kind of task that answers a question by a part of a passage, or says that the passage does not answer it: SQuAD 1.1 and 2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks.formats.splits import split_file
from model.tasks.formats.squad import Questions, counts, read_squad
from model.tasks.heads import TokenClassifier
from model.tasks.kinds.spans.decode import PREDICTIONS, Found, together, window_spans, write_official
from model.tasks.kinds.spans.windows import BOUNDS, ENDS, STARTS, Windows, encode_questions
from model.tasks.metrics import squad
from model.tasks.metrics.bootstrap import Ints, interval
from model.tasks.options import SpanOptions, TaskOptions
from model.tasks.task import Figures, Loss, Meaning, Samples, Task
from pipeline.core.errors import UsageError
from pipeline.tokenizer.tokenizer import Tokenizer

HEAD = "span"
SMALLEST = 16  # pieces: below it a window has no room for a question and an answer


class Spans(Task[Questions, Sequence[Found]]):
    """Two numbers a position: does the answer start, does it end here? (Devlin et al. 2019, figure 4c, sections 4.2 and 4.3)

    Trained by the mean of both cross-entropies over the positions of the sequence. A question without an answer, and a window that
    does not hold it, point at [CLS].
    """

    metrics: tuple[str, ...] = ("f1", "exact_match")
    max_length = 384
    predictions = PREDICTIONS

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        assert isinstance(options, SpanOptions)
        self.span_options = options
        named = [names[0] for names in options.files.values()] or ["train.json", "dev.json"]
        self.files = f"a directory with {' and '.join(named[:2])}, in SQuAD's JSON"

    def read(self, path: str, split: str, limit_per_class: int | None) -> Questions:
        self.refuse_limit(limit_per_class, ", which has no classes")
        name = split_file(path, split, self.options, (".json",), self.files)
        return read_squad(name, unanswerable=self.span_options.unanswerable)

    def meaning(self, train: Questions) -> Meaning:
        del train
        return {}

    def heads(self, meaning: Meaning) -> dict[str, Any]:
        del meaning
        return {HEAD: {}}

    def encode(self, examples: Questions, tokenizer: Tokenizer, max_length: int) -> Windows:
        """
        Raises:
            UsageError: there is no room for a passage.
        """
        if max_length < SMALLEST:
            raise UsageError(f"max_length ({max_length}) leaves no room for question and passage; use {SMALLEST} or more")
        return encode_questions(examples, tokenizer, max_length, self.span_options)

    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        del meaning
        return TokenClassifier(backbone, config.hidden_size, 2, dropout, HEAD)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch[STARTS])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        logits = outputs.masked_fill(~batch["attention_mask"][:, :, None], torch.finfo(outputs.dtype).min)
        places = torch.stack([batch[STARTS], batch[ENDS]], dim=1)  # [B, 2]
        total = nn.functional.cross_entropy(logits, places, reduction="sum") / 2
        return Loss(total=total, correct=(logits.argmax(dim=1) == places).all(dim=1).sum())

    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sequence[Any]:
        return window_spans(outputs, batch[BOUNDS], self.span_options.n_best, self.span_options.answer_length)

    def decode(self, answers: Sequence[Any], examples: Questions, samples: Samples) -> Sequence[Found]:
        assert isinstance(samples, Windows)
        return together(answers, examples, samples, self.span_options.n_best)

    def texts(self, predictions: Sequence[Found]) -> list[str]:
        """The answers; the empty text where there is none."""
        if not self.span_options.unanswerable:
            return [found.text for found in predictions]
        threshold = self.span_options.null_threshold or 0.0
        return ["" if found.null_odds > threshold else found.text for found in predictions]

    def settled(self, examples: Questions, predictions: Sequence[Found]) -> dict[str, Any]:
        """The threshold of "no answer" at which F1 is best on the dev split, where none was given."""
        if not self.span_options.unanswerable or self.span_options.null_threshold is not None:
            return {}
        return {"null_threshold": self._best(examples, predictions)["best_f1_thresh"]}

    def score(self, examples: Questions, predictions: Sequence[Found]) -> Figures:
        """F1 and exact match; with unanswerable questions what evaluate-v2.0.py tells of both kinds of question and of the best threshold."""
        exact, f1 = self._scores(examples, self.texts(predictions))
        figures = {"f1": _mean(f1), "exact_match": _mean(exact)}
        if self.span_options.unanswerable:
            has = _has_answer(examples)
            for name, chosen in (("HasAns", has), ("NoAns", ~has)):
                if chosen.any():
                    figures |= {f"{name}_exact": _mean(exact[chosen]), f"{name}_f1": _mean(f1[chosen])}
            figures |= self._best(examples, predictions)
        return figures

    def facts(self, examples: Questions) -> dict[str, Any]:
        return {"questions": {**counts(examples), "mended_answers": examples.mended}}

    def details(self, examples: Questions, predictions: Sequence[Found], *, seed: int, resamples: int) -> dict[str, Any]:
        exact, f1 = self._scores(examples, self.texts(predictions))
        named = {"f1": f1, "exact_match": exact}
        drawn = {name: interval(partial(_mean_of, values), len(examples), seed, resamples) for name, values in named.items()}
        return {"interval": {name: list(bounds) for name, bounds in drawn.items()}}

    def write(self, directory: str, examples: Questions, predictions: Sequence[Found]) -> None:
        """`predictions.json` (id to text), `nbest_predictions.json`, and with unanswerable questions `null_odds.json`."""
        write_official(directory, examples, self.texts(predictions), predictions, null=self.span_options.unanswerable)

    def _scores(self, examples: Questions, texts: Sequence[str]) -> tuple[squad.Floats, squad.Floats]:
        assert examples.answers is not None
        answers = [[answer.text for answer in given] for given in examples.answers]
        return squad.question_scores(texts, answers, unanswerable=self.span_options.unanswerable)

    def _best(self, examples: Questions, predictions: Sequence[Found]) -> Figures:
        """The best figures that a threshold reaches, and the threshold, as evaluate-v2.0.py calls them."""
        exact, f1 = self._scores(examples, [found.text for found in predictions])
        has, odds = _has_answer(examples), np.array([found.null_odds for found in predictions])
        figures: Figures = {}
        for name, scores in (("exact", exact), ("f1", f1)):
            figures[f"best_{name}"], figures[f"best_{name}_thresh"] = squad.best_threshold(scores, odds, has)
        return figures


def _has_answer(examples: Questions) -> squad.Flags:
    assert examples.answers is not None
    return np.array([bool(answers) for answers in examples.answers], dtype=np.bool_)


def _mean_of(values: squad.Floats, chosen: Ints) -> float:
    return _mean(values[chosen])


def _mean(values: squad.Floats) -> float:
    return float(values.mean()) if len(values) else 0.0
