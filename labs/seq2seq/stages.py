"""Tasks, metrics and verb of the lab, with their options. No torch: the command line imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import InputPath
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.stages.stage import InputSpec
from cloze.core.words import caseless, letters_apart, word_pattern
from cloze.model.tasks.options import TableOptions, TaskSpec
from cloze.model.tasks.table import TaskKind
from cloze.model.tasks.text_tasks import TEXT_TASKS
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, TableColumns, verb_stage

Texts = Sequence[str]


def bleu(texts: Texts, targets: Texts) -> float:
    """Return the corpus BLEU of sacrebleu (Post, 2018), tokenized as by mteval-v13a.

    That splits at spaces: for Chinese, Japanese and Thai use chrF.
    """
    import sacrebleu

    return min(1.0, float(sacrebleu.corpus_bleu(list(texts), [list(targets)]).score) / 100.0)


def chrf(texts: Texts, targets: Texts) -> float:
    """Return the corpus chrF of sacrebleu (Popović, 2015): 6 characters, no words, beta 2."""
    import sacrebleu

    return float(sacrebleu.corpus_chrf(list(texts), [list(targets)]).score) / 100.0


def rouge(name: str, texts: Texts, targets: Texts) -> float:
    """Return the mean F1 of ROUGE-1, -2 or -L (Lin, 2004), with Porter's stemmer, as T5.

    rouge-score drops all letters but a to z. A target with others is compared by `_AnyScript`.
    """
    from rouge_score.rouge_scorer import RougeScorer

    english = RougeScorer([name], use_stemmer=True)
    others = RougeScorer([name], tokenizer=_AnyScript)
    total = 0.0
    for text, target in zip(texts, targets, strict=True):
        has_others = any(letter.isalpha() and not letter.isascii() for letter in target)
        scorer = others if has_others else english
        total += scorer.score(target, text)[name].fmeasure
    return total / max(1, len(targets))


class _AnyScript:
    """Tokenizer of rouge-score: words; in scripts without spaces between words, letters."""

    @staticmethod
    def tokenize(text: str) -> list[str]:
        words: list[str] = word_pattern().findall(letters_apart(caseless(text)))
        return words


Metric = tuple[str, Callable[[Texts, Texts], float]]  # package and function
TEXT_METRICS: dict[str, Metric] = {
    "bleu": ("sacrebleu", bleu),
    "chrf": ("sacrebleu", chrf),
    **{name: ("rouge_score", partial(rouge, name)) for name in ("rouge1", "rouge2", "rougeL")},
}
EXACT_MATCH = "exact_match"


def packages(names: Sequence[str], own: Sequence[str]) -> set[str]:
    """Return the packages that metrics need; `own`: further metrics, of the task's kind.

    Raises:
        UsageError: a metric is unknown.
    """
    known = (*own, *TEXT_METRICS)
    for name in names:
        if name not in known:
            fix = did_you_mean(name, known)
            raise UsageError(f"options.metrics ({name!r}) is unknown; {fix}")
    return {TEXT_METRICS[name][0] for name in names if name in TEXT_METRICS}


class TextToTextOptions(TableOptions):
    """Options of text-to-text: inputs (roles text, pair) and the texts to write (role label)."""

    label_is_class: ClassVar[bool] = False

    prefix: str = ""
    """Text before every input that names the task, such as `translate English to German: `."""

    target_length: int = Field(default=64, ge=2)
    """Maximum tokens of a target, and of what is written."""

    metrics: tuple[str, ...] = ()
    """Metrics, the task's score first: exact_match, bleu, chrf, rouge1, rouge2, rougeL. Empty:
    those of the task."""

    beams: int = Field(default=1, ge=1)
    """Partial outputs that the search for the best text follows. 1: greedy."""

    length_penalty: float = 1.0
    """Exponent of the length by which a beam's log-probability is divided; above 0 favours longer
    texts."""

    passages: int = Field(default=5, ge=1)
    """With --retrieve: passages that are read with each input, each alone."""

    marginal: Literal["sequence", "token"] = "sequence"
    """With --retrieve: sum over passages per text (RAG-Sequence) or per token (RAG-Token)."""


class OpenQuestionOptions(TextToTextOptions):
    """Options of open questions: a question (role text) with a list of answers (role label)."""

    patterns: bool = False
    """Answers are regular expressions (CuratedTrec). Questions of the train split whose answers
    are all patterns are dropped."""


VECTORS = "vectors"  # input of the stage finetune
TASK_KIND = TaskKind(
    "cloze.labs.seq2seq.text_to_text_task:TextToText",
    TextToTextOptions,
    max_length=512,
    inputs={
        VECTORS: InputSpec(
            kinds=("vectors",),
            explicit_only=True,
            option="--retrieve",
            help="Vectors of an index; text-to-text tasks read the best passages (RAG).",
        )
    },
)


OPEN_QUESTIONS_KIND = replace(
    TASK_KIND, build="cloze.labs.seq2seq.open_questions:OpenQuestions", options=OpenQuestionOptions
)


def _questions(folder: str, files: dict[str, tuple[str, ...]], **options: Any) -> TaskSpec:
    """Return a task of open questions; one without a dev split takes a tenth of the train split."""
    if "dev" not in files:
        files, options = {**files, "dev": files["train"]}, {"folds": 10, **options}
    return TaskSpec(
        kind="open-questions",
        metrics=("exact_match", "f1"),
        options={
            "folder": folder,
            "files": files,
            "format": "open-questions",
            "columns": {"text": "question", "label": "answers"},
            "target_length": 16,
            **options,
        },
    )


def _as_text(name: str, prefix: str, labels: tuple[str, ...]) -> TaskSpec:
    """Return a classification task whose labels, numbers in its files, are written as words."""
    known = TextToTextOptions.model_fields
    options = {key: value for key, value in TEXT_TASKS[name].options.items() if key in known}
    values = {"label": {str(number): label for number, label in enumerate(labels)}}
    return TaskSpec(
        kind="text-to-text",
        options={**options, "prefix": prefix, "values": values, "target_length": 8},
    )


# user files
TEXT_TO_TEXT = TaskSpec(kind="text-to-text")
TRANSLATION = TaskSpec(kind="text-to-text", metrics=("bleu", "chrf"))
SUMMARIZATION = TaskSpec(kind="text-to-text", metrics=("rougeL", "rouge1", "rouge2"))
# classification as text, with T5's prefixes (Raffel et al. 2020, appendix D)
SST2_TEXT = _as_text("sst2", "sst2 sentence: ", ("negative", "positive"))
COLA_TEXT = _as_text("cola", "cola sentence: ", ("unacceptable", "acceptable"))

# Open questions (Lee et al. 2019): files of the authors, of DrQA, then of DPR. The dev split of
# NQ-open is what papers call test.
NQ_OPEN = _questions(
    "nq_open",
    {
        "train": ("NQ-open.train.jsonl", "nq-train.qa.csv"),
        "dev": ("NQ-open.dev.jsonl", "nq-dev.qa.csv"),
        "test": ("nq-test.qa.csv",),
    },
)
WEBQ = _questions(
    "webquestions",
    {s: (f"WebQuestions-{s}.txt", f"webquestions-{s}.qa.csv") for s in ("train", "test")},
)
TREC = _questions(
    "curatedtrec",
    {s: (f"CuratedTrec-{s}.txt", f"curatedtrec-{s}.qa.csv") for s in ("train", "test")},
    patterns=True,
)


class GenerateConfig(VerbConfig):
    """Options of generate. A request has `text`, the beginning of a text."""

    tokens: int = Field(default=40, ge=1)
    """Maximum number of new tokens; fewer if the text ends, or the model can read no more."""

    samples: int = Field(default=1, ge=1)
    """Number of continuations per text; more than one are sampled."""

    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; 0 takes the most likely token. Default: 0, or 1 with other sampling
    options."""

    top_k: int | None = Field(default=None, ge=1)
    """Sample from this number of most likely tokens."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the fewest tokens whose probabilities sum to this value."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sampling."""

    beams: int | None = Field(default=None, ge=1)
    """Encoder-decoders: partial outputs that the search follows. Default: the task's, else 1."""

    length_penalty: float | None = None
    """Encoder-decoders: exponent of the length that divides a beam's score. Default: the task's,
    else 1."""

    corpus: InputPath | None = None
    """Checkpoints of --retrieve: vectors of passages to read instead of those of the training."""


VERB = Predictor(
    GenerateConfig,
    "cloze.labs.seq2seq.generate:Generate",
    heads=("lm", "seq2seq"),
    examples=({"text": "The cat"},),
    columns=lambda config: TableColumns(
        "text:string continuation:string tokens:long stopped:string", params={"tokens": 40}
    ),
    pipeline="cloze.labs.seq2seq.generate:generation_pipeline",
    served="cloze.labs.seq2seq.generate:continue_texts",
)
STAGE = verb_stage("generate", VERB)
