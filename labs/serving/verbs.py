"""Configs, rows and stages of the lab's verbs. No torch: the command line imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import PREDICTORS, Predictor, TableColumns, verb_stage


class BestAnswersConfig(VerbConfig):
    """Options of every command that answers questions."""

    top_k: int = Field(default=5, ge=1)
    """Number of answers, best first."""


class AnswerConfig(BestAnswersConfig):
    """Options of answer. A request has `question` and `passage`, a text of any length."""

    explain: bool = False
    """Attribute the best answer to question and passage, by integrated gradients."""


class ClassifyConfig(VerbConfig):
    """Options of classify; a request has `text`, and `pair` or `choices` if the task needs it."""

    top_k: int | None = Field(default=None, ge=1)
    """Number of labels, best first. Default: all."""

    labels: str | None = None
    """Labels to choose from without training on them, comma-separated, such as politics,sports;
    for a model that was fine-tuned on inference (mnli, rte)."""

    hypothesis: str = "This text is about {}."
    """With --labels: sentence that the text entails if the label in {} is right."""

    explain: bool = False
    """Attribute the prediction to the tokens, by integrated gradients."""

    @model_validator(mode="after")
    def _check_labels(self) -> ClassifyConfig:
        if self.labels is not None and len(self.label_names) < 2:
            raise ValueError(f"labels ({self.labels}) must be two or more, separated by commas")
        if "{}" not in self.hypothesis:
            raise ValueError(f"hypothesis ({self.hypothesis}) has no {{}}; write it for the label")
        if self.explain and self.labels is not None:
            raise ValueError(f"explain and labels ({self.labels}) exclude each other; give one")
        return self

    @property
    def label_names(self) -> list[str]:
        """The labels of zero-shot classification."""
        return [name.strip() for name in (self.labels or "").split(",") if name.strip()]


class TagConfig(VerbConfig):
    """Options of tag. A request has `text`."""

    words: bool = False
    """Split words at spaces only; punctuation is already separated."""

    explain: bool = False
    """Attribute each entity's first tag to the words, by integrated gradients."""


class ExplainMaskConfig(VerbConfig):
    """Options of explain-mask. A request has `text` with [MASK] or the tokenizer's mask token."""


class EmbedConfig(VerbConfig):
    """Options of embed. A request has `text`."""

    pooling: Literal["mean", "first", "pooler"] | None = None
    """Vector of a text: mean of the last hidden states, the first one, or the pooler's output.
    Default: the checkpoint's, else mean."""

    normalize: bool | None = None
    """Scale vectors to length 1. Default: as the checkpoint was tuned, else off."""

    max_length: int | None = Field(default=None, ge=3)
    """Maximum tokens per text, special tokens included. Default: as the checkpoint was tuned, else
    its maximum."""

    npy: str | None = None
    """File for all vectors, float32 [n, D] in NumPy format; the answers are then empty."""

    word_vectors: bool = False
    """One vector per word, the mean of its tokens in context, instead of one per text."""

    layers: tuple[int, ...] = ()
    """Layer whose states are averaged, from 0 (embeddings) or from the end. Repeatable.
    Default: -1, the last."""

    @model_validator(mode="after")
    def _check_words(self) -> EmbedConfig:
        if self.word_vectors and self.npy is not None:
            raise ValueError("word_vectors and an .npy file exclude each other; write JSON lines")
        if self.word_vectors and self.pooling is not None:
            raise ValueError(f"word_vectors and pooling ({self.pooling}) exclude each other")
        return self


class ScoreTextsConfig(VerbConfig):
    """Options of the command score. A request has `text`."""

    mask: Literal["token", "whole-word", "word-l2r", "causal"] = "token"
    """Mask for a scored token: token (itself), whole-word, word-l2r (with the rest of its word), or
    causal (score left to right)."""

    normalize: Literal["none", "tokens", "penalty"] = "none"
    """Divisor of the sum: none, tokens (their number), or penalty, ((5 + n) / 6) ** 0.8."""


def _label_columns(config: Mapping[str, Any]) -> TableColumns:
    """Return the columns of a classification, regression or multiple-choice checkpoint."""
    task, chooses = config.get("task") or {}, "choice" in config["heads"]
    inputs = ("text", "choices") if chooses else ("text",)
    outputs = "label:string score:double" if chooses or "labels" in task else "score:double"
    if task.get("problem_type") == "multi_label_classification":
        outputs = "labels:string label:string score:double"
    return TableColumns(outputs, ("text", "text_pair") if task.get("pairs") else inputs)


LAB = "cloze.labs.serving"
# The first one that the checkpoint accepts is its example.
_TEXT = {"text": "The cat sat on the mat."}

CLASSIFY = Predictor(
    ClassifyConfig,
    f"{LAB}.classify:open_classifier",
    heads=("classifier", "pair_classifier", "choice"),
    examples=(
        {"text": "A charming film."},
        {"text": "A cat sits.", "pair": "An animal sits."},
        {"text": "She opens the book.", "choices": ["She reads it.", "She eats it."]},
    ),
    columns=_label_columns,
    pipeline=f"{LAB}.classify:TextClassificationPipeline",
    served=f"{LAB}.tables:classify",
)
ANSWER = Predictor(
    AnswerConfig,
    f"{LAB}.predictors:AnswerPredictor",
    "question",
    heads=("span",),
    examples=({"question": "Where is the cat?", "passage": "The cat is in Paris."},),
    columns=lambda config: TableColumns(
        "question:long answer:string score:double start:long end:long",
        ("question", "passage"),
        {"top_k": 5},
    ),
    pipeline=f"{LAB}.predictors:QuestionAnsweringPipeline",
    served=f"{LAB}.tables:answer_questions",
)
TAG = Predictor(
    TagConfig,
    f"{LAB}.predictors:Tag",
    heads=("token_classifier",),
    examples=({"text": "Ada Lovelace met Charles Babbage in London."},),
    columns=lambda config: TableColumns(
        "text:long entity:string type:string start:long end:long score:double"
    ),
    pipeline=f"{LAB}.predictors:TokenClassificationPipeline",
    served=f"{LAB}.tables:tag",
)
EMBED = Predictor(
    EmbedConfig,
    f"{LAB}.predictors:Embed",
    heads=("embedding",),
    examples=(_TEXT,),
    columns=lambda config: TableColumns("vector:double"),
    pipeline="cloze.labs.embed:EmbeddingPipeline",
    served=f"{LAB}.tables:embed",
)
SCORE = Predictor(ScoreTextsConfig, f"{LAB}.predictors:ScoreTexts", examples=(_TEXT,))

EXPLAIN_MASK = Predictor(ExplainMaskConfig, f"{LAB}.explain_mask:ExplainMask")

CLASSIFY_STAGE = verb_stage("classify", CLASSIFY)
ANSWER_STAGE = verb_stage("answer", ANSWER)
TAG_STAGE = verb_stage("tag", TAG)
EMBED_STAGE = verb_stage("embed", EMBED)
EXPLAIN_MASK_STAGE = verb_stage("explain-mask", EXPLAIN_MASK)
SCORE_STAGE = verb_stage("score-texts", SCORE)


def served() -> dict[str, Predictor]:
    """Return the rows of the verbs that `cloze serve` answers with: those that have examples."""
    return {name: verb for name, verb in sorted(PREDICTORS.loaded().items()) if verb.examples}
