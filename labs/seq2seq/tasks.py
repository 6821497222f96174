"""The kind text-to-text: its options, and its tasks. No torch: the command line imports it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cloze.core.stages.stage import InputSpec
from cloze.model.tasks.options import TableOptions, TaskSpec
from cloze.model.tasks.table import TaskKind
from cloze.model.tasks.text_tasks import TEXT_TASKS


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


VECTORS = "vectors"  # input of the stage finetune
KIND = TaskKind(
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
