"""MLflow's pyfunc loader: `mlflow.pyfunc.load_model(…).predict([…])`.

MLmodel files name this module.

The model's data is a checkpoint directory: safetensors, JSON and a tokenizer, no pickle. This
module does not import MLflow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.model import checkpoint
from cloze.model.families.config import prediction_objectives
from cloze.model.use.classify import TextClassificationPipeline
from cloze.model.use.embed import EmbeddingPipeline
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.finetuned import QuestionAnsweringPipeline, TokenClassificationPipeline
from cloze.model.use.generate import SamplingParams, TextGenerationPipeline, continuation_json

if TYPE_CHECKING:
    import pandas

TOP_K = 5
TOKENS = 40
QUESTION, PASSAGE = "question", "passage"  # input columns of question answering models
# Input columns; `text_pair` for tasks on pairs, `choices` for multiple choice.
TEXT, PAIR, CHOICES = ("text", "text_pair", "choices")


class MaskModel:
    """Fill-mask model: one output row per candidate."""

    def __init__(self, path: str) -> None:
        self._filler = FillMaskPipeline(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return the candidates of each mask of each text, best first.

        Args:
            model_input: strings with [MASK], as a list, a Series, or a DataFrame's column `text`.
            params: `top_k`, candidates per mask.

        Returns:
            Columns `text` (index of the text, from 0), `mask` (index of the mask in it), `token`,
            `score` (its probability) and `sequence` (the text with the token filled in).

        Raises:
            UsageError: a text has no mask, or is longer than the model's maximum length.
        """
        import pandas

        top_k = int((params or {}).get("top_k", TOP_K))
        rows = [
            {"text": number, "mask": mask, **candidate}
            for number, text in enumerate(_columns(model_input)[0])
            for mask, candidates in enumerate(self._filler.fill(text, top_k))
            for candidate in candidates
        ]
        return pandas.DataFrame(rows, columns=["text", "mask", "token", "score", "sequence"])


class TextModel:
    """Classification, regression or multiple-choice model: one output row per text."""

    def __init__(self, path: str) -> None:
        self._classifier = TextClassificationPipeline(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return the answer for each text.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame with columns `text`,
                `text_pair` (tasks on pairs) and `choices` (multiple choice; a list of endings per
                text).
            params: ignored.

        Returns:
            Columns `label` (multiple choice: the ending) and `score`, its probability. Regression:
            `score` alone, the predicted number.

        Raises:
            UsageError: the task needs pairs or choices that are missing, or does not accept those
                of the input.
        """
        import pandas

        del params
        classifier, (texts, pairs) = self._classifier, _columns(model_input)
        if classifier.answers == "scores":
            return pandas.DataFrame({"score": classifier.score(texts, pairs)})
        if classifier.answers == "choices":
            if not hasattr(model_input, "columns") or CHOICES not in model_input.columns:
                raise UsageError(
                    f"the model chooses among endings (found no column {CHOICES}); give a "
                    f"DataFrame with one"
                )
            rows = [
                (best["text"], best["score"])
                for (best,) in classifier.choose(
                    texts, [list(endings) for endings in model_input[CHOICES]], 1
                )
            ]
        else:
            rows = [
                (best["label"], best["score"]) for (best,) in classifier.classify(texts, pairs, 1)
            ]
        return pandas.DataFrame(rows, columns=["label", "score"])


class ContinuationModel:
    """Text generation model: one output row per text."""

    def __init__(self, path: str) -> None:
        self._generator = TextGenerationPipeline(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return the likeliest continuation of each text.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame's column `text`.
            params: `tokens`, the maximum number of generated tokens.

        Returns:
            Columns `text` (prompt and continuation), `continuation`, `tokens` (number generated)
            and `stopped` (`end` of the text, `tokens` or `model`).
        """
        import pandas

        tokens = int((params or {}).get("tokens", TOKENS))
        generated = self._generator.generate(
            _columns(model_input)[0], tokens=tokens, samples=1, choice=SamplingParams()
        )
        return pandas.DataFrame(
            [continuation_json(continuation) for (continuation,) in generated],
            columns=["text", "continuation", "tokens", "stopped"],
        )


class AnswerModel:
    """Extractive question answering model: one output row per answer."""

    def __init__(self, path: str) -> None:
        self._answerer = QuestionAnsweringPipeline(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return the answers to each question, best first.

        Args:
            model_input: a DataFrame with columns `question` and `passage`.
            params: `top_k`, answers per question.

        Returns:
            Columns `question` (index, from 0), `answer`, `score`, `start` and `end` (character
            offsets in the passage, -1: no answer).

        Raises:
            UsageError: a column is missing.
        """
        import pandas

        missing = [
            name for name in (QUESTION, PASSAGE) if name not in getattr(model_input, "columns", ())
        ]
        if missing:
            raise UsageError(
                f"the model answers questions from passages (found no column {missing[0]}); give a "
                f"DataFrame with both"
            )
        questions = [
            (str(question), str(passage))
            for question, passage in zip(model_input[QUESTION], model_input[PASSAGE], strict=True)
        ]
        predictions = self._answerer.answer_batch(
            questions, int((params or {}).get("top_k", TOP_K))
        )
        rows = [
            {
                "question": number,
                **answer,
                **{end: -1 if answer[end] is None else answer[end] for end in ("start", "end")},
            }
            for number, answers in enumerate(predictions)
            for answer in answers
        ]
        return pandas.DataFrame(rows, columns=["question", "answer", "score", "start", "end"])


class TagModel:
    """Named-entity model: one output row per entity."""

    def __init__(self, path: str) -> None:
        self._tagger = TokenClassificationPipeline(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return the entities of each text, in the order of their positions.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame's column `text`.
            params: ignored.

        Returns:
            Columns `text` (index of the text, from 0), `entity`, `type`, `start` and `end`
            (character offsets) and `score`.
        """
        import pandas

        del params
        rows = [
            {**entity, "text": number, "entity": entity["text"]}
            for number, entities in enumerate(self._tagger.tag_batch(_columns(model_input)[0]))
            for entity in entities
        ]
        return pandas.DataFrame(rows, columns=["text", "entity", "type", "start", "end", "score"])


class VectorModel:
    """Embedding model: one output row per text."""

    def __init__(self, path: str) -> None:
        self._embedder = EmbeddingPipeline(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return the embedding of each text.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame's column `text`.
            params: ignored.

        Returns:
            A column `vector`, a list of floats.
        """
        import pandas

        del params
        return pandas.DataFrame({"vector": self._embedder.embed(_columns(model_input)[0]).tolist()})


# Models by the checkpoint's head; `cloze.flows.tracking.models` describes them to MLflow.
MODELS: dict[str, Callable[[str], Any]] = {
    "masked_lm": MaskModel,
    "lm": ContinuationModel,
    "classifier": TextModel,
    "pair_classifier": TextModel,
    "choice": TextModel,
    "span": AnswerModel,
    "token_classifier": TagModel,
    "embedding": VectorModel,
}


def _columns(model_input: Any) -> tuple[list[str], list[str] | None]:
    """Return the texts, and the second texts if the input has them."""
    if hasattr(model_input, "columns"):
        names = [str(name) for name in model_input.columns]
        text_column = TEXT if TEXT in names else names[0]
        columns = dict(
            zip(names, (model_input.iloc[:, index] for index in range(len(names))), strict=True)
        )
        pairs = [str(text) for text in columns[PAIR]] if PAIR in columns else None
        return [str(text) for text in columns[text_column]], pairs
    return [
        str(text) for text in ([model_input] if isinstance(model_input, str) else model_input)
    ], None


def _load_pyfunc(data_path: str) -> Any:
    """Load the model for a checkpoint directory; MLflow's entry point.

    Args:
        data_path: a checkpoint directory.

    Raises:
        UsageError: no model here serves the checkpoint's heads.
        DataError: the checkpoint is damaged.
    """
    path = checkpoint.resolve(data_path)
    heads = json.loads(storage.read_text(storage.join(path, checkpoint.CONFIG)))["heads"]
    # A masked_lm head that was trained left to right only.
    if set(prediction_objectives(heads)) == {"clm"}:
        return ContinuationModel(path)
    for head, model in MODELS.items():
        if head in heads:
            return model(path)
    raise UsageError(
        f"{path} has no head that MLflow could ask ({', '.join(heads)}); use the verbs of `cloze`"
    )
