"""Commands that train, convert and evaluate models: `pretrain` and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cloze.core import storage
from cloze.flows.commands.base.field_options import Count, NameOf
from cloze.flows.commands.base.inference_command import Answer, InferenceCommand
from cloze.flows.commands.base.options import (
    GroupedOption,
    OptionOverride,
    split_commas,
    weights,
)
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult

CORPUS = ("--corpus", "Corpus artifact, for tasks that are built from one.")

PRETRAIN = StageCommand(
    "pretrain",
    stage="pretrain",
    help="Pretrain an encoder on one or more datasets.\n\nResumes from the newest checkpoint in"
    " --out.",
    inputs={
        "dataset": (
            "--dataset",
            "Dataset artifact. Repeat to mix several: --dataset wiki=A --dataset books=B."
            " Repeatable.",
        ),
        "checkpoint": (
            "--checkpoint",
            "Initialize the weights from this checkpoint, with a new optimizer state.",
        ),
        "continue": (
            "--continue",
            "Continue this pretraining as a new phase, with its optimizer state and step count.",
        ),
        "teacher": (
            "--teacher",
            "Teacher for distillation: a checkpoint or a Hugging Face directory.",
        ),
    },
    spelled={
        "model": OptionOverride(
            "--model", str, {"type": NameOf("cloze.model.families.registry:presets", "PRESET")}
        ),
        "size": OptionOverride("--size", int, {"type": Count(min=1), "metavar": "N"}),
        "mixture": OptionOverride(
            "--mixture", weights, {"multiple": True, "metavar": "NAME=WEIGHT"}
        ),
        "objectives": OptionOverride(
            "--objective",
            lambda texts: list(split_commas(texts)),
            {"metavar": "NAME", "multiple": True},
        ),
        "max_time": OptionOverride("--max-time", settings={"metavar": "DURATION"}),
    },
)

MERGE = StageCommand(
    "merge",
    stage="merge",
    positional=("checkpoint",),
    help="Average the last checkpoints of a pretraining.\n\nCHECKPOINT is the artifact of a"
    " pretraining.",
)

FINETUNE = StageCommand(
    "finetune",
    stage="finetune",
    help="Fine-tune a pretrained encoder on a task, and score it.",
    inputs={
        "checkpoint": (
            "--checkpoint",
            "Pretrained or fine-tuned checkpoint to start from; the head of a fine-tuned one is"
            " dropped.",
        ),
        "corpus": CORPUS,
        "vocab": (
            "--tokenizer",
            "Tokenizer, for a model with random weights (--from-scratch without --checkpoint).",
        ),
        "teacher": (
            "--teacher",
            "Fine-tuned checkpoint of the same task and vocabulary, to learn its answers, too.",
        ),
    },
)


PERPLEXITY = StageCommand(
    "perplexity", stage="perplexity", help="Compute a checkpoint's loss on held-out rows."
)

LIKELIHOOD = StageCommand(
    "likelihood",
    stage="likelihood",
    positional=("checkpoint",),
    help="Compute a checkpoint's bits per byte of held-out texts.\n\nUnlike the perplexity, it"
    " compares models with different vocabularies.",
    inputs={"corpus": ("--corpus", "Corpus artifact, whose held-out sentences are sampled.")},
)


@click.command(
    cls=StageCommand,
    stage="evaluate",
    inputs={
        "checkpoint": (
            "--checkpoint",
            "Fine-tuned checkpoint, or its artifact; several are an ensemble. Repeatable.",
        ),
        "corpus": CORPUS,
    },
    transient=True,
)
@click.option(
    "--predictions",
    cls=GroupedOption,
    metavar="FILE",
    help="Also write the predictions to this file, in the task's official format.",
)
def evaluate(arguments: StageArguments, predictions: str | None) -> None:
    """Score a fine-tuned checkpoint on labelled data."""

    def copy_predictions(result: BuildResult) -> dict[str, Any]:

        if predictions is None:
            return {}
        path = storage.join(result.artifact, str(result.manifest.summary["predictions"]))
        with storage.open_input(path) as handle:
            storage.write_bytes(predictions, handle.read())
        return {"predictions": predictions}

    run_stage(arguments, copy_predictions)


@click.command(
    "score-pairs",
    cls=StageCommand,
    stage="score",
    positional=("checkpoint", "data"),
    transient=True,
)
def score_pairs(arguments: StageArguments) -> None:
    """Score minimal pairs, such as those of BLiMP.

    The score is the share of pairs whose good sentence has the higher probability. DATA is a
    .jsonl, .tsv or .csv file, or a directory of them.
    """
    run_stage(arguments, None if arguments.as_json else _show_phenomena)


def _show_phenomena(result: BuildResult) -> dict[str, Any]:
    """Print the accuracy of each phenomenon, lowest first."""
    from cloze.flows.views import terminal

    table = terminal.table_of(("accuracy", "phenomenon"), right=("accuracy",))
    by_phenomenon = result.manifest.summary["metrics"]["by_phenomenon"]
    for name, value in sorted(by_phenomenon.items(), key=lambda item: float(item[1])):
        table.add_row(f"{100 * value:.1f}", terminal.ellipsized(name))
    terminal.output().print(table)
    return {}


def _show_candidates(answer: Answer) -> RenderableType:
    """Return a table per [MASK]: probability, token, and the filled text."""
    tables = []
    for candidates in answer["predictions"]:
        table = Table(box=None, show_header=False, pad_edge=False)
        for candidate in candidates:
            table.add_row(
                f"{candidate['score']:.3f}",
                Text(candidate["token"], style="bold"),
                Text(candidate["sequence"]),
            )
        tables.append(table)
    return Group(*tables)


FILL_MASK = InferenceCommand(
    "fill-mask",
    help="Predict the [MASK] tokens of a text.",
    text="Text with at least one [MASK].",
    show=_show_candidates,
    gather=lambda answers: {
        "predictions": [mask for answer in answers for mask in answer["predictions"]]
    },
)
