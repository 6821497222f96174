"""What the verb classify does, once torch is there: texts, pairs of texts, or contexts with endings in; labels or numbers out.

A request has `text`; `pair`, where the task is about pairs; `choices`, a list of endings, where it chooses among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.tasks.formats.choices import FEWEST, Choices
from model.tasks.formats.labelled_texts import LabelledTexts
from model.tasks.formats.scored_texts import ScoredTexts
from model.tasks.formats.tables_texts import PAIR
from model.tasks.kinds.choice import Choice
from model.tasks.kinds.classification import Classification
from model.tasks.kinds.regression import Regression
from model.tasks.options import TableOptions, TaskOptions
from model.use.classify_stage import ClassifyConfig
from model.use.requests import Request
from model.use.serve import Verb
from model.use.tuned import Tuned
from pipeline.core.errors import UsageError

Ranked = list[dict[str, Any]]  # {"label": str, "score": probability}, best first


class Classifier:
    """A checkpoint of a task of classification, regression or multiple choice, in memory.

    Attributes:
        answers: `labels`, `scores` or `choices`: which of `classify`, `score` and `choose` it can do.
        pairs: whether its task is about pairs of texts; None: nobody said, as of an imported model, and both are read.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is another kind's.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        self._tuned, self.path = Tuned(path), path
        task = self._tuned.task
        kinds = {"labels": Classification, "scores": Regression, "choices": Choice}
        found = [name for name, kind in kinds.items() if isinstance(task, kind)]
        if not found:
            raise UsageError(f"task {task.name} of {path} gives no labels to texts; use `cloze evaluate`")
        self.answers = found[0]
        self.pairs: bool | None = self._tuned.meaning.get("pairs", _pairs_of(task.options))

    @property
    def truncated(self) -> int:
        """How many inputs lost pieces to the greatest length, since it was loaded."""
        return self._tuned.truncated

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None, top_k: int | None = None) -> list[Ranked]:
        """The labels of each text, or pair of texts, likeliest first.

        Args:
            top_k: how many labels a text; all by default.

        Returns:
            A list a text of {"label": as the training data writes it, "score": its probability}.

        Raises:
            UsageError: the task gives no labels; it is about pairs and there are none, or the other way round.
        """
        self._check("labels", "classify", texts, pairs)
        if not texts:
            return []
        names = tuple(str(name) for name in self._tuned.meaning["labels"])
        examples = LabelledTexts(texts=texts, text_pairs=pairs, labels=None, label_names=names)
        return [_ranked(names, row, top_k) for row in self._tuned.predictions(examples)]

    def score(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[float]:
        """The number of each text, or pair of texts, in the unit of the training data. Raises as `classify` does."""
        self._check("scores", "score", texts, pairs)
        if not texts:
            return []
        return [float(number) for number in self._tuned.predictions(ScoredTexts(texts=texts, text_pairs=pairs, scores=None))]

    def choose(self, contexts: Sequence[str], choices: Sequence[Sequence[str]], top_k: int | None = None) -> list[Ranked]:
        """The endings of each context, likeliest first.

        Args:
            choices: two or more a context, as they follow it.

        Returns:
            A list a context of {"choice": its number, from 0, "text": the ending, "score": its probability}.

        Raises:
            UsageError: the task chooses among no endings, or a context has fewer than two.
        """
        self._check("choices", "choose", contexts, None)
        if len(choices) != len(contexts) or any(len(endings) < FEWEST for endings in choices):
            raise UsageError("each text needs two or more choices")
        if not contexts:
            return []
        examples = Choices(contexts=contexts, endings=choices, labels=None, label_names=())
        return [
            [{"choice": int(place), "text": endings[place], "score": float(row[place])} for place in _best(row, top_k)]
            for row, endings in zip(self._tuned.predictions(examples), choices, strict=True)
        ]

    def _check(self, answers: str, verb: str, texts: Sequence[str], pairs: Sequence[str] | None) -> None:
        name = self._tuned.task.name
        if self.answers != answers:
            other = {"labels": "classify", "scores": "score", "choices": "choose"}[self.answers]
            raise UsageError(f"task {name} of {self.path} gives {self.answers}, not {answers}; use {other} instead of {verb}")
        if self.pairs is not None and (pairs is not None) != self.pairs and texts:
            said = "reads pairs of texts; give each text its pair" if self.pairs else "reads single texts; leave the pairs out"
            raise UsageError(f"task {name} of {self.path} {said}")
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(f"{len(texts)} texts and {len(pairs)} pairs do not belong together; give each text its pair")


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request as the classifier reads it."""

    text: str
    pair: str | None
    choices: Sequence[str]


class Classify(Verb[_Asked]):
    """The verb: of each request the best label or choice, and all of them ranked in `predictions`; or its score."""

    def __init__(self, checkpoint: str, config: ClassifyConfig) -> None:
        self._classifier, self._top_k = Classifier(checkpoint), config.top_k

    def read(self, request: Request) -> _Asked:
        text, pair, choices = request.text("text"), request.optional("pair"), request.fields.get("choices")
        found, empty = self._classifier, [name for name, value in (("text", text), ("pair", pair)) if value == ""]
        if empty:
            raise request.fault(f"has an empty {empty[0]!r}; write something")
        if found.pairs is not None and (pair is not None) != found.pairs:
            raise request.fault(
                "has no 'pair', and the model reads pairs; add it (--pair)"
                if found.pairs
                else "has a 'pair', and the model reads single texts; leave it out"
            )
        if (choices is not None) != (found.answers == "choices"):
            raise request.fault(
                "has no 'choices', among which the model chooses; add them (--choice)"
                if choices is None
                else "has 'choices', and the model chooses none; leave them out"
            )
        if choices is not None and (
            not isinstance(choices, list)
            or len(choices) < FEWEST
            or not all(isinstance(choice, str) and choice.strip() for choice in choices)
        ):
            raise request.fault("has 'choices' that are no list of two or more texts; write them as one")
        return _Asked(text, pair, choices or ())

    def answer(self, group: Sequence[_Asked]) -> list[dict[str, Any]]:
        """The answers to requests that all have pairs, or have none; others are asked apart."""
        with_pairs = [asked.pair is not None for asked in group]
        if any(with_pairs) and not all(with_pairs):
            parts = {kind: iter(self.answer([a for a in group if (a.pair is not None) == kind])) for kind in (False, True)}
            return [next(parts[kind]) for kind in with_pairs]
        texts, found = [asked.text for asked in group], self._classifier
        pairs = [asked.pair for asked in group if asked.pair is not None] or None
        if found.answers == "scores":
            return [{"score": score} for score in found.score(texts, pairs)]
        if found.answers == "choices":
            ranked = found.choose(texts, [asked.choices for asked in group], self._top_k)
        else:
            ranked = found.classify(texts, pairs, self._top_k)
        return [{**best[0], "predictions": best} for best in ranked]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._classifier.truncated}


def _pairs_of(options: TaskOptions) -> bool | None:
    """Whether a task's columns are those of pairs; None: they are not said."""
    columns = options.columns if isinstance(options, TableOptions) else {"text": "text"}
    return PAIR in columns if columns else None


def _ranked(names: Sequence[str], row: np.ndarray[Any, Any], top_k: int | None) -> Ranked:
    return [{"label": names[place], "score": float(row[place])} for place in _best(row, top_k)]


def _best(row: np.ndarray[Any, Any], top_k: int | None) -> list[int]:
    """The places of the greatest values, the greatest first; of equal ones the first."""
    found: list[int] = np.argsort(-row, kind="stable")[:top_k].tolist()
    return found
