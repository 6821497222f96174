"""MLflow's pyfunc loader: `mlflow.pyfunc.load_model(…).predict([…])`.

MLmodel files name this module.

The model's data is a checkpoint directory: safetensors, JSON and a tokenizer, no pickle. This
module does not import MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from cloze.core.errors import UsageError
from cloze.model.tasks.kinds.multilabel import MultiLabel
from cloze.model.use.serving import verb_of
from cloze.model.use.verb import PREDICTORS

if TYPE_CHECKING:
    import pandas

    from cloze.model.use.answer import QuestionAnsweringPipeline
    from cloze.model.use.classify import TextClassificationPipeline
    from cloze.model.use.embed import EmbeddingPipeline
    from cloze.model.use.fill_mask import FillMaskPipeline
    from cloze.model.use.tag import TokenClassificationPipeline

Params = Mapping[str, Any]
TOP_K = 5
TOKENS = 40
QUESTION, PASSAGE = "question", "passage"  # input columns of question answering models
# Input columns; `text_pair` for tasks on pairs, `choices` for multiple choice.
TEXT, PAIR, CHOICES = ("text", "text_pair", "choices")


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, as `mlflow.pyfunc` calls it.

    Attributes:
        pipeline: a pipeline of `cloze.model.use` on the checkpoint.
        answer: maps pipeline, input and parameters to the answer; `Predictor.served` of a verb.
            `cloze.flows.tracking.served_columns` describes the columns to MLflow.
    """

    pipeline: Any
    answer: Callable[[Any, Any, Params], pandas.DataFrame]

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return one row per answer.

        Args:
            model_input: strings, as a list, an array or a Series; or a table's column `text`, where
                a table is a DataFrame, a dict of columns or a list of dicts. Some models read
                other columns, see their `answer`; all others are ignored.
            params: see `answer`; others are ignored.

        Raises:
            UsageError: the model cannot read the input, such as for a missing value.
        """
        return self.answer(self.pipeline, model_input, params or {})


def fill_masks(pipeline: FillMaskPipeline, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the candidates of each mask of each text, best first.

    Args:
        model_input: strings with [MASK].
        params: `top_k`, candidates per mask.

    Returns:
        Columns `text` (index of the text, from 0), `mask` (index of the mask in it), `token`,
        `score` (its probability) and `sequence` (the text with the token filled in).

    Raises:
        UsageError: a text has no mask, or is longer than the model's maximum length.
    """
    rows = [
        {"text": number, "mask": mask, **candidate}
        for number, text in enumerate(_texts(_table(model_input)))
        for mask, candidates in enumerate(pipeline.fill(text, int(params.get("top_k", TOP_K))))
        for candidate in candidates
    ]
    return _frame(rows, "text", "mask", "token", "score", "sequence")


def classify(
    pipeline: TextClassificationPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the answer for each text: its label, its number (regression), or its ending.

    Args:
        model_input: strings, or a DataFrame with columns `text`, `text_pair` (tasks on pairs) and
            `choices` (multiple choice; a list of endings per text).

    Returns:
        Columns `label` (multiple choice: the ending) and `score`, its probability. Regression:
        `score` alone, the predicted number. Multi-label: before them `labels`, the list of all
        that are predicted.

    Raises:
        UsageError: the task needs pairs or choices that are missing, or does not accept those of
            the input.
    """
    table = _table(model_input)
    texts, pairs = _texts(table), _texts(table, PAIR) if PAIR in table.columns else None
    if pipeline.answers == "scores":
        return _frame([{"score": score} for score in pipeline.score(texts, pairs)], "score")
    if pipeline.answers == "choices":
        endings = [list(map(str, choices)) for choices in _column(table, CHOICES)]
        selected = pipeline.choose(texts, endings, 1)
        rows = [{"label": best["text"], "score": best["score"]} for (best,) in selected]
    elif isinstance(pipeline.task, MultiLabel):
        threshold, ranked = pipeline.task.options.threshold, pipeline.classify(texts, pairs)
        rows = [
            {**best[0], "labels": [own["label"] for own in best if own["score"] > threshold]}
            for best in ranked
        ]
        return _frame(rows, "labels", "label", "score")
    else:
        rows = [best for (best,) in pipeline.classify(texts, pairs, 1)]
    return _frame(rows, "label", "score")


def continue_texts(pipeline: Any, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the likeliest continuation of each text.

    Args:
        pipeline: its `generate` maps texts to lists of `Continuation`.
        params: `tokens`, the maximum number of generated tokens.

    Returns:
        Columns `text` (prompt and continuation), `continuation`, `tokens` (number generated) and
        `stopped` (`end` of the text, `tokens` or `model`).
    """
    texts, most = _texts(_table(model_input)), int(params.get("tokens", TOKENS))
    rows = [
        {
            "text": own.text,
            "continuation": own.continuation,
            "tokens": len(own.ids),
            "stopped": own.stopped,
        }
        for (own,) in pipeline.generate(texts, tokens=most)
    ]
    return _frame(rows, "text", "continuation", "tokens", "stopped")


def answer_questions(
    pipeline: QuestionAnsweringPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the answers to each question, best first.

    Args:
        model_input: a DataFrame with columns `question` and `passage`.
        params: `top_k`, answers per question.

    Returns:
        Columns `question` (index, from 0), `answer`, `score`, `start` and `end` (character offsets
        in the passage, -1: no answer).

    Raises:
        UsageError: a column is missing.
    """
    table = _table(model_input)
    questions = list(zip(_texts(table, QUESTION), _texts(table, PASSAGE), strict=True))
    predictions = pipeline.answer_batch(questions, int(params.get("top_k", TOP_K)))
    rows = [
        {
            "question": number,
            **answer,
            **{end: -1 if answer[end] is None else answer[end] for end in ("start", "end")},
        }
        for number, answers in enumerate(predictions)
        for answer in answers
    ]
    return _frame(rows, "question", "answer", "score", "start", "end")


def tag(
    pipeline: TokenClassificationPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the entities of each text, in the order of their positions.

    Returns:
        Columns `text` (index of the text, from 0), `entity`, `type`, `start` and `end` (character
        offsets) and `score`.
    """
    rows = [
        {**entity, "text": number, "entity": entity["text"]}
        for number, entities in enumerate(pipeline.tag_batch(_texts(_table(model_input))))
        for entity in entities
    ]
    return _frame(rows, "text", "entity", "type", "start", "end", "score")


def embed(pipeline: EmbeddingPipeline, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the embedding of each text, in the column `vector`, a list of floats."""
    vectors = pipeline.embed(_texts(_table(model_input))).tolist()
    return _frame([{"vector": vector} for vector in vectors], "vector")


def _frame(rows: list[dict[str, Any]], *columns: str) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows, columns=list(columns))


def _table(model_input: Any) -> pandas.DataFrame:
    """Return the input as a table: texts alone are its column `text`.

    Raises:
        UsageError: an array has several columns without names, or a table's columns differ in size.
    """
    import pandas

    if isinstance(model_input, pandas.DataFrame):
        # MLflow makes such a table of a list, and Spark of a column.
        unnamed = list(model_input.columns) in ([0], ["0"])
        return model_input.set_axis([TEXT], axis=1) if unnamed else model_input
    if isinstance(model_input, Mapping):
        try:
            return pandas.DataFrame({name: _listed(own) for name, own in model_input.items()})
        except ValueError as error:
            raise UsageError(f"the input is no table ({error}); give each column as many") from None
    rows = _listed(model_input)
    if rows and all(isinstance(row, Mapping) for row in rows):
        return pandas.DataFrame(rows)
    rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in rows]
    return pandas.DataFrame({TEXT: rows})


def _listed(value: Any) -> list[Any]:
    """Return a list of a list, an array, a Series or one value."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _column(table: pandas.DataFrame, name: str) -> list[Any]:
    """Return the values of a column.

    Raises:
        UsageError: it does not exist, exists twice, or a value is missing or blank.
    """
    import pandas

    if (count := list(table.columns).count(name)) != 1:
        found = ", ".join(map(str, table.columns)) or "none"
        raise UsageError(
            f"the model reads the column {name}, and the input has {count or 'none'} of that name "
            f"(its columns: {found}); name one {name}"
        )
    values = [_listed(value) if name == CHOICES else value for value in table[name]]
    for row, value in enumerate(values):
        parts = value if name == CHOICES else [value]
        if any(not pandas.api.types.is_scalar(part) for part in parts):
            raise UsageError(f"row {row} (from 0): the {name} is no text; write one text a row")
        if any(pandas.isna(part) or not str(part).strip() for part in parts):
            raise UsageError(
                f"row {row} (from 0): the {name} is missing or blank; write it, or leave the row "
                f"out"
            )
    return values


def _texts(table: pandas.DataFrame, name: str = TEXT) -> list[str]:
    """Return the texts of a column, which is there in every row; raises as `_column`."""
    return [str(value) for value in _column(table, name)]


def _load_pyfunc(data_path: str) -> ServedModel:
    """Load the model for a checkpoint directory; MLflow's entry point.

    Args:
        data_path: a checkpoint directory.

    Raises:
        UsageError: no model here serves the checkpoint's heads.
        DataError: the checkpoint is damaged.
    """
    verb = PREDICTORS.find(verb_of(data_path))
    return ServedModel(resolve_name(verb.pipeline)(data_path), resolve_name(verb.served))
