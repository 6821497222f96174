"""Answers to MLflow, as tables: `Predictor.served` of the lab's verbs, see `cloze.model.pyfunc`.

Their columns are in `verbs.py`; start and end are characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloze.model.pyfunc import (
    CHOICES,
    TOP_K,
    Params,
    answer_table,
    column_texts,
    column_values,
    input_table,
)
from cloze.model.tasks.kinds.multilabel import MultiLabel

if TYPE_CHECKING:
    import pandas

    from cloze.labs.embed import EmbeddingPipeline
    from cloze.labs.serving.classify import TextClassificationPipeline
    from cloze.labs.serving.predictors import QuestionAnsweringPipeline, TokenClassificationPipeline

PAIR = "text_pair"  # input column of tasks on pairs
QUESTION, PASSAGE = "question", "passage"  # input columns of question answering models


def classify(
    pipeline: TextClassificationPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the answer for each text: its label, its number (regression), or its ending.

    Args:
        model_input: strings, or a DataFrame with columns `text`, `text_pair` (tasks on pairs) and
            `choices` (multiple choice; a list of endings per text).

    Raises:
        UsageError: the task needs pairs or choices that are missing, or does not accept those of
            the input.
    """
    table = input_table(model_input)
    texts, pairs = column_texts(table), column_texts(table, PAIR) if PAIR in table.columns else None
    if pipeline.answers == "scores":
        return answer_table([{"score": score} for score in pipeline.score(texts, pairs)], "score")
    if pipeline.answers == "choices":
        endings = [list(map(str, choices)) for choices in column_values(table, CHOICES)]
        selected = pipeline.choose(texts, endings, 1)
        rows = [{"label": best["text"], "score": best["score"]} for (best,) in selected]
    elif isinstance(pipeline.task, MultiLabel):
        threshold, ranked = pipeline.task.options.threshold, pipeline.classify(texts, pairs)
        rows = [
            {**best[0], "labels": [own["label"] for own in best if own["score"] > threshold]}
            for best in ranked
        ]
        return answer_table(rows, "labels", "label", "score")
    else:
        rows = [best for (best,) in pipeline.classify(texts, pairs, 1)]
    return answer_table(rows, "label", "score")


def answer_questions(
    pipeline: QuestionAnsweringPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the answers to each question, best first; `start` and `end` are -1 without an answer.

    Args:
        model_input: a DataFrame with columns `question` and `passage`.
        params: `top_k`, answers per question.

    Raises:
        UsageError: a column is missing.
    """
    table = input_table(model_input)
    questions = list(zip(column_texts(table, QUESTION), column_texts(table, PASSAGE), strict=True))
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
    return answer_table(rows, "question", "answer", "score", "start", "end")


def tag(
    pipeline: TokenClassificationPipeline, model_input: Any, params: Params
) -> pandas.DataFrame:
    """Return the entities of each text by position; `text` is the number of the text, from 0."""
    texts = column_texts(input_table(model_input))
    rows = [
        {**entity, "text": number, "entity": entity["text"]}
        for number, entities in enumerate(pipeline.tag_batch(texts))
        for entity in entities
    ]
    return answer_table(rows, "text", "entity", "type", "start", "end", "score")


def embed(pipeline: EmbeddingPipeline, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the embedding of each text, in the column `vector`, a list of floats."""
    vectors = pipeline.embed(column_texts(input_table(model_input))).tolist()
    return answer_table([{"vector": vector} for vector in vectors], "vector")
