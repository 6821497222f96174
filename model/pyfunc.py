"""MLflow's pyfunc loader: `mlflow.pyfunc.load_model(…).predict([…])`.

MLmodel files name this module.

The model's data is a checkpoint directory: safetensors, JSON and a tokenizer, no pickle. This
module does not import MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloze.core.errors import UsageError
from cloze.model.use.answer import QuestionAnsweringPipeline
from cloze.model.use.classify import TextClassificationPipeline
from cloze.model.use.embed import EmbeddingPipeline
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.generate import (
    SamplingParams,
    TextGenerationPipeline,
    continuation_json,
    generation_pipeline,
)
from cloze.model.use.serving import verb_of
from cloze.model.use.tag import TokenClassificationPipeline

if TYPE_CHECKING:
    import pandas

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
        answer: maps pipeline, input and parameters to the answer; a function of this module.
    """

    pipeline: Any
    answer: Callable[[Any, Any, Params], pandas.DataFrame]

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return one row per answer.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame's column `text`; some models
                read other columns, see their `answer`.
            params: see `answer`; others are ignored.

        Raises:
            UsageError: the model cannot read the input.
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
        for number, text in enumerate(_columns(model_input)[0])
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
        `score` alone, the predicted number.

    Raises:
        UsageError: the task needs pairs or choices that are missing, or does not accept those of
            the input.
    """
    texts, pairs = _columns(model_input)
    if pipeline.answers == "scores":
        return _frame([{"score": score} for score in pipeline.score(texts, pairs)], "score")
    if pipeline.answers == "choices":
        if not hasattr(model_input, "columns") or CHOICES not in model_input.columns:
            raise UsageError(
                f"the model chooses among endings (found no column {CHOICES}); give a DataFrame "
                f"with one"
            )
        endings = [list(choices) for choices in model_input[CHOICES]]
        selected = pipeline.choose(texts, endings, 1)
        rows = [{"label": best["text"], "score": best["score"]} for (best,) in selected]
    else:
        rows = [best for (best,) in pipeline.classify(texts, pairs, 1)]
    return _frame(rows, "label", "score")


def continue_texts(
    pipeline: TextGenerationPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the likeliest continuation of each text.

    Args:
        params: `tokens`, the maximum number of generated tokens.

    Returns:
        Columns `text` (prompt and continuation), `continuation`, `tokens` (number generated) and
        `stopped` (`end` of the text, `tokens` or `model`).
    """
    generated = pipeline.generate(
        _columns(model_input)[0],
        tokens=int(params.get("tokens", TOKENS)),
        samples=1,
        choice=SamplingParams(),
    )
    rows = [continuation_json(continuation) for (continuation,) in generated]
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
    columns = getattr(model_input, "columns", ())
    missing = [name for name in (QUESTION, PASSAGE) if name not in columns]
    if missing:
        raise UsageError(
            f"the model answers questions from passages (found no column {missing[0]}); give a "
            f"DataFrame with both"
        )
    questions = [
        (str(question), str(passage))
        for question, passage in zip(model_input[QUESTION], model_input[PASSAGE], strict=True)
    ]
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
        for number, entities in enumerate(pipeline.tag_batch(_columns(model_input)[0]))
        for entity in entities
    ]
    return _frame(rows, "text", "entity", "type", "start", "end", "score")


def embed(pipeline: EmbeddingPipeline, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the embedding of each text, in the column `vector`, a list of floats."""
    vectors = pipeline.embed(_columns(model_input)[0]).tolist()
    return _frame([{"vector": vector} for vector in vectors], "vector")


# Pipeline and answer by the checkpoint's verb; `cloze.flows.tracking.models` describes the columns
# to MLflow.

MODELS: dict[str, tuple[Callable[[str], Any], Callable[..., pandas.DataFrame]]] = {
    "fill-mask": (FillMaskPipeline, fill_masks),
    "generate": (generation_pipeline, continue_texts),
    "classify": (TextClassificationPipeline, classify),
    "answer": (QuestionAnsweringPipeline, answer_questions),
    "tag": (TokenClassificationPipeline, tag),
    "embed": (EmbeddingPipeline, embed),
}


def _frame(rows: list[dict[str, Any]], *columns: str) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows, columns=list(columns))


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


def _load_pyfunc(data_path: str) -> ServedModel:
    """Load the model for a checkpoint directory; MLflow's entry point.

    Args:
        data_path: a checkpoint directory.

    Raises:
        UsageError: no model here serves the checkpoint's heads.
        DataError: the checkpoint is damaged.
    """
    pipeline, answer = MODELS[verb_of(data_path)]
    return ServedModel(pipeline(data_path), answer)
