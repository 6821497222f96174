"""The command classify: labels, scores or choices for texts.

A request has `text`; `pair` for tasks on pairs; `choices`, a list of endings, for multiple choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.core.errors import UsageError
from cloze.labs.serving.explain import Explains, explain_text
from cloze.labs.serving.verbs import ClassifyConfig
from cloze.model.tasks.formats.choices import FEWEST, Choices
from cloze.model.tasks.formats.tables import PAIR
from cloze.model.tasks.formats.texts import LabelledTexts, ScoredTexts
from cloze.model.tasks.kinds.choice import Choice
from cloze.model.tasks.kinds.multilabel import LabelSets, MultiLabel
from cloze.model.tasks.kinds.texts import Classification, Regression
from cloze.model.tasks.options import TableOptions, TaskOptions
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Split
from cloze.model.train.precision import Placement, placement
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

if TYPE_CHECKING:
    from typing import Unpack

METHODS = {"labels": "classify", "scores": "score", "choices": "choose"}  # by kind of answer
Floats = npt.NDArray[np.float32]
Ranked = list[dict[str, Any]]  # {"label": str, "score": probability}, best first


class TextClassificationPipeline(FinetunedModel):
    """Checkpoint of a classification, regression or multiple-choice task, in memory.

    Attributes:
        answers: supported method: `labels` (`classify`), `scores` (`score`) or `choices`
            (`choose`).
        pairs: the task is about pairs of texts; None: unknown, both are accepted.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is of another kind.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, **placement: Unpack[Placement]) -> None:
        super().__init__(path, **placement)
        self.path, task = path, self.task
        types: dict[str, tuple[type, ...]] = {
            "labels": (Classification, MultiLabel),
            "scores": (Regression,),
            "choices": (Choice,),
        }
        matches = [name for name, own in types.items() if isinstance(task, own)]
        if not matches:
            raise UsageError(
                f"task {task.name} of {path} gives no labels to texts; use `cloze evaluate`"
            )
        self.answers = matches[0]
        self.pairs: bool | None = self.metadata.get("pairs", _pairs_of(task.options))

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, top_k: int | None = None
    ) -> list[Ranked]:
        """Return the labels of each text or pair of texts, most probable first.

        Args:
            top_k: maximum labels per text. Default: all.

        Returns:
            For each text, dicts of "label", as in the training data, and "score", its probability.

        Raises:
            UsageError: the task gives no labels, or pairs are missing or unexpected.
        """
        self._check("labels", texts, pairs)
        return self.ranked(self.encode_texts(texts, pairs), top_k) if texts else []

    def score(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[float]:
        """Return each text's score in the unit of the training data; raises as `classify`."""
        self._check("scores", texts, pairs)
        ranked = self.ranked(self.encode_texts(texts, pairs)) if texts else []
        return [best["score"] for (best,) in ranked]

    def choose(
        self, contexts: Sequence[str], choices: Sequence[Sequence[str]], top_k: int | None = None
    ) -> list[Ranked]:
        """Return the endings of each context, most probable first.

        Args:
            choices: endings of each context, at least two.

        Returns:
            For each context, dicts of "choice", the number from 0, "text" and "score", the
            probability.

        Raises:
            UsageError: the task is no multiple choice, or a context has fewer than two endings.
        """
        self._check("choices", contexts, None)
        if len(choices) != len(contexts) or any(len(endings) < FEWEST for endings in choices):
            raise UsageError("each text needs two or more choices")
        return self.ranked(self.encode_texts(contexts, None, choices), top_k) if contexts else []

    def encode_texts(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        choices: Sequence[Sequence[str]] = (),
    ) -> Split:
        """Tokenize texts, of which there is at least one, for `ranked`."""
        if self.answers == "scores":
            return self.encode(ScoredTexts(texts=texts, text_pairs=pairs, scores=None))
        if self.answers == "choices":
            return self.encode(
                Choices(contexts=texts, endings=choices, labels=None, label_names=())
            )
        names = tuple(str(name) for name in self.metadata["labels"])
        kind = LabelSets if isinstance(self.task, MultiLabel) else LabelledTexts
        return self.encode(kind(texts=texts, text_pairs=pairs, labels=None, label_names=names))

    def ranked(self, split: Split, top_k: int | None = None) -> list[Ranked]:
        """Return what `classify` or `choose` return, or one {"score": number} per text."""
        rows, examples = self.predict(split), split.examples
        if self.answers == "scores":
            return [[{"score": float(number)}] for number in rows]
        if isinstance(examples, Choices):
            return [
                [
                    {"choice": int(index), "text": endings[index], "score": float(row[index])}
                    for index in _best(row, top_k)
                ]
                for row, endings in zip(rows, examples.endings, strict=True)
            ]
        assert isinstance(examples, LabelledTexts | LabelSets)
        names = examples.label_names
        return [
            [{"label": names[index], "score": float(row[index])} for index in _best(row, top_k)]
            for row in rows
        ]

    def entailment(self, texts: Sequence[str], pairs: Sequence[str]) -> Floats:
        """Return how much each text entails its second text: logits, float32 [n].

        Raises:
            UsageError: the task has no label `entailment`, or reads no pairs.
        """
        names = [str(name).lower() for name in self.metadata.get("labels") or ()]
        if "entailment" not in names:
            raise UsageError(
                f"task {self.task.name} of {self.path} has no label entailment (it has"
                f" {', '.join(names) or 'none'}); name a model that was fine-tuned on mnli or rte"
            )
        self._check("labels", texts, pairs)
        logits: Floats = self.outputs(self.encode_texts(texts, pairs))[:, names.index("entailment")]
        return logits

    def _check(self, answers: str, texts: Sequence[str], pairs: Sequence[str] | None) -> None:
        name = self.task.name
        if self.answers != answers:
            raise UsageError(
                f"task {name} of {self.path} gives {self.answers}, not {answers}; use "
                f"{METHODS[self.answers]} instead of {METHODS[answers]}"
            )
        if self.pairs is not None and (pairs is not None) != self.pairs and texts:
            message = (
                "reads pairs of texts; give each text its pair"
                if self.pairs
                else "reads single texts; leave the pairs out"
            )
            raise UsageError(f"task {name} of {self.path} {message}")
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(
                f"{len(texts)} texts and {len(pairs)} pairs do not belong together; give each text "
                f"its pair"
            )


class _Input(NamedTuple):
    """Request as the classifier reads it."""

    text: str
    pair: str | None
    choices: Sequence[str]


class Classify(Explains[_Input]):
    """Predictor of classify: best label or choice and all `predictions`, or a score."""

    def __init__(self, checkpoint: str, config: ClassifyConfig) -> None:
        where = placement(config.device, config.precision)
        self._classifier = TextClassificationPipeline(checkpoint, **where)
        self._top_k = config.top_k
        super().__init__(checkpoint, self._classifier, config.explain)

    def read(self, request: Request) -> _Input:
        text, pair = request.text("text"), request.optional("pair")
        choices, classifier = request.fields.get("choices"), self._classifier
        if classifier.pairs is not None and (pair is not None) != classifier.pairs:
            raise request.error(
                "has no 'pair', and the model reads pairs; add it (--pair)"
                if classifier.pairs
                else "has a 'pair', and the model reads single texts; leave it out"
            )
        if (choices is not None) != (classifier.answers == "choices"):
            raise request.error(
                "has no 'choices', among which the model chooses; add them (--choice)"
                if choices is None
                else "has 'choices', and the model chooses none; leave them out"
            )
        if choices is not None and (
            not isinstance(choices, list)
            or len(choices) < FEWEST
            or not all(isinstance(choice, str) and choice.strip() for choice in choices)
        ):
            raise request.error(
                "has 'choices' that are no list of two or more texts; write them as one"
            )
        return _Input(text, pair, choices or ())

    def encode(self, group: Sequence[_Input]) -> list[tuple[list[int], Split]]:
        """Tokenize requests, those with a pair apart: numbers of requests, and their split."""
        encoded = []
        for paired in (False, True):
            indices = [i for i, item in enumerate(group) if (item.pair is not None) == paired]
            if indices:
                items = [group[i] for i in indices]
                pairs = [item.pair for item in items if item.pair is not None] or None
                choices = [item.choices for item in items]
                texts = [item.text for item in items]
                encoded.append((indices, self._classifier.encode_texts(texts, pairs, choices)))
        return encoded

    def answers(self, encoded: Sequence[tuple[list[int], Split]]) -> list[dict[str, Any]]:
        rows = {}
        for indices, split in encoded:
            ranked = self._classifier.ranked(split, self._top_k)
            for index, best in zip(indices, ranked, strict=True):
                kept = {} if self._classifier.answers == "scores" else {"predictions": best}
                rows[index] = {**best[0], **kept}
        return [rows[index] for index in sorted(rows)]

    def explain(
        self, encoded: Sequence[tuple[list[int], Split]], answers: Sequence[dict[str, Any]]
    ) -> None:
        for indices, split in encoded:
            for number, index in enumerate(indices):
                found = explain_text(self._classifier, split, number, answers[index])
                answers[index]["explanation"] = found


class ZeroShot(Verb[str]):
    """Predictor of classify with labels that the model has not been trained on.

    A text is classified by a model of natural-language inference: the label whose hypothesis the
    text entails most (Yin et al., "Benchmarking Zero-shot Text Classification", 2019). The scores
    are the softmax of the logits of entailment over the labels.
    """

    def __init__(self, checkpoint: str, config: ClassifyConfig) -> None:
        where = placement(config.device, config.precision)
        self._classifier = TextClassificationPipeline(checkpoint, **where)
        self._top_k, self._labels = config.top_k, config.label_names
        self._hypotheses = [config.hypothesis.replace("{}", label) for label in self._labels]
        self._classifier.entailment(["A"], ["A"])  # refuses a model without entailment

    def read(self, request: Request) -> str:
        text = request.text("text")
        if request.fields.get("pair") is not None:
            raise request.error("needs a 'text' and no 'pair' (--labels makes the pairs)")
        return text

    def answer(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        texts = [text for text in encoded for _ in self._labels]
        logits = self._classifier.entailment(texts, self._hypotheses * len(encoded))
        rows = logits.astype(np.float64).reshape(len(encoded), len(self._labels))
        weights = np.exp(rows - rows.max(axis=1, keepdims=True))
        scores = weights / weights.sum(axis=1, keepdims=True)
        ranked = [
            [{"label": self._labels[i], "score": float(row[i])} for i in _best(row, self._top_k)]
            for row in scores
        ]
        return [{**best[0], "predictions": best} for best in ranked]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._classifier.truncated}


def open_classifier(checkpoint: str, config: ClassifyConfig) -> Verb[Any]:
    return (Classify if config.labels is None else ZeroShot)(checkpoint, config)


def _pairs_of(options: TaskOptions) -> bool | None:
    """Return True if a task's columns include a pair; None if columns are unknown."""
    columns = options.columns if isinstance(options, TableOptions) else {"text": "text"}
    return PAIR in columns if columns else None


def _best(row: np.ndarray[Any, Any], top_k: int | None) -> list[int]:
    """Return the indices of the greatest values, greatest first; ties in order."""
    indices: list[int] = np.argsort(-row, kind="stable")[:top_k].tolist()
    return indices
