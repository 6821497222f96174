"""Commands that train, convert and evaluate models: pretrain, merge, finetune, import, export,
evaluate, perplexity, score-pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.option_overrides import (
    GroupedOption,
    OptionOverride,
    split_commas,
    weights,
)
from cloze.flows.commands.options import NameOf
from cloze.flows.commands.stage_command import StageArguments, StageCommand, run_stage

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
            "Teacher for distillation (distilbert models): a checkpoint or a Hugging Face"
            " directory.",
        ),
    },
    spelled={
        "model": OptionOverride(
            "--model", str, {"type": NameOf("cloze.model.families.registry:presets", "PRESET")}
        ),
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
    arguments=("checkpoint",),
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
    },
)

IMPORT = StageCommand(
    "import",
    stage="import",
    arguments=("directory",),
    help="Convert a Hugging Face model into a checkpoint.\n\nDIRECTORY is the model's directory.",
)

EXPORT = StageCommand(
    "export",
    stage="export",
    arguments=("checkpoint",),
    help="Convert a checkpoint into a Hugging Face model, and check that its outputs stay equal.",
)

PERPLEXITY = StageCommand(
    "perplexity",
    stage="perplexity",
    help="Compute a checkpoint's loss on held-out rows.",
)


@click.command(
    cls=StageCommand,
    stage="evaluate",
    inputs={
        "checkpoint": ("--checkpoint", "Fine-tuned checkpoint, or its artifact."),
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
def evaluate(given: StageArguments, predictions: str | None) -> None:
    """Score a fine-tuned checkpoint on labelled data."""

    def copy(result: BuildResult) -> dict[str, Any]:
        from cloze.core import storage

        if predictions is None:
            return {}
        made = storage.join(result.artifact, str(result.manifest.summary["predictions"]))
        with storage.open_input(made) as handle:
            storage.write_bytes(predictions, handle.read())
        return {"predictions": predictions}

    run_stage(given, copy)


@click.command(
    "score-pairs", cls=StageCommand, stage="score", arguments=("checkpoint", "data"), transient=True
)
def score_pairs(given: StageArguments) -> None:
    """Score minimal pairs, such as those of BLiMP.

    The score is the share of pairs whose good sentence has the higher probability. DATA is a
    .jsonl, .tsv or .csv file, or a directory of them.
    """
    run_stage(given, None if given.as_json else _show_phenomena)


def _show_phenomena(result: BuildResult) -> dict[str, Any]:
    """Print the accuracy of each phenomenon, lowest first."""
    from rich.console import Console

    from cloze.flows.views import terminal

    table = terminal.table_of(("accuracy", "phenomenon"), right=("accuracy",))
    by_phenomenon = result.manifest.summary["metrics"]["by_phenomenon"]
    for name, value in sorted(by_phenomenon.items(), key=lambda item: float(item[1])):
        table.add_row(f"{100 * value:.1f}", terminal.ellipsized(name))
    Console(highlight=False).print(table)
    return {}
