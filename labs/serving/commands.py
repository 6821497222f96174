"""Commands of the lab's verbs: embed, classify, tag, answer, score.

Options come from the config of the inference stage (`cloze.flows.commands.base.inference_command`).
A command defines how a prediction is printed, and additional fields of a request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.core import storage
from cloze.flows.commands.base.inference_command import STDIN, Answer, InferenceCommand, Request
from cloze.flows.commands.base.options import OptionOverride

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NPY = ".npy"
SHOWN = 6  # printed numbers of a vector


def _rows() -> Table:
    from rich.table import Table

    return Table(box=None, show_header=False, pad_edge=False)


def _show_vector(answer: Answer) -> RenderableType:
    """Return the first numbers of a vector and the text, in a line; or a line per word."""
    lines = []
    for row in answer.get("words", (answer,)):
        vector = row["embedding"]
        ellipsis = " …" if len(vector) > SHOWN else ""
        numbers = " ".join(f"{number:.3f}" for number in vector[:SHOWN])
        lines.append(f"{numbers}{ellipsis}  {row['text']}")
    return "\n".join(lines)


@click.command(
    "embed",
    cls=InferenceCommand,
    text="Text to embed.",
    show=_show_vector,
    spelled={
        "word_vectors": OptionOverride("--words"),
        "layers": OptionOverride("--layers"),
        "npy": None,  # --out FILE.npy
    },
)
def embed(request: Request, options: Mapping[str, Any]) -> None:
    """Compute the embeddings of texts.

    With --out FILE.npy all vectors are written to one file, float32 [texts, width], in the order of
    the texts.
    """
    if request.out is None or not request.out.lower().endswith(NPY):
        embed.predict(request, options)
        return

    embed.predict_into_file(
        request,
        {**options, "npy": storage.absolute(request.out)},
        receive=lambda answers: None,
        finish=lambda summary: f"{summary['answered']:,} vectors of {summary['size']} numbers",
    )


def _show_labels(answer: Answer) -> RenderableType:
    """Return a line per label, best first: probability and label; or the score."""
    from rich.text import Text

    table = _rows()
    if "predictions" not in answer:
        table.add_row(f"{answer['score']:.3f}")
    for number, prediction in enumerate(answer.get("predictions", ())):
        label = str(prediction.get("text", prediction.get("label")))
        style = "bold" if number == 0 else ""
        table.add_row(f"{prediction['score']:.3f}", Text(label, style=style))
    return table if "explanation" not in answer else _show_explanation(table, answer["explanation"])


def _show_explanation(
    table: RenderableType, explanation: Mapping[str, Any] | None
) -> RenderableType:
    """Return the labels, and the tokens: green ones speak for the first label, red ones against.

    With the shares of the context, if the explanation has them.
    """
    from rich.console import Group
    from rich.text import Text

    if explanation is None:
        return Group(table, Text("no answer has no place, so no explanation", style="dim"))
    tokens = explanation["tokens"]
    largest = max((abs(token["score"]) for token in tokens), default=1.0) or 1.0
    line = Text()
    for token in tokens:
        share = token["score"] / largest
        color = "green" if share > 0 else "red"
        style = f"bold {color}" if abs(share) > 0.5 else color if abs(share) > 0.1 else "dim"
        line.append(f"{token['text']} ", style=style)
    shares = explanation.get("context", {})
    parts = [f"{side} {share:.0%}" for side, share in shares.items() if share is not None]
    return Group(table, line, *([Text(", ".join(parts), style="dim")] if parts else []))


def _show_explained(found: Sequence[Answer], *names: str) -> RenderableType:
    """Return each entity or mask, and its explanation."""
    from rich.console import Group

    heads = (" ".join((f"{own['score']:.3f}", *(own[name] for name in names))) for own in found)
    return Group(*map(_show_explanation, heads, (own["explanation"] for own in found)))


@click.command("classify", cls=InferenceCommand, text="Text to classify.", show=_show_labels)
@click.option(
    "--pair",
    metavar="TEXT",
    help="Second text, for tasks on pairs; in a JSONL file, the field pair.",
)
@click.option(
    "--choice",
    "choices",
    multiple=True,
    metavar="TEXT",
    help="Ending to choose from, at least two; in a JSONL file, the field choices. Repeatable.",
)
def classify(
    request: Request, options: Mapping[str, Any], pair: str | None, choices: tuple[str, ...]
) -> None:
    """Classify texts with a fine-tuned checkpoint.

    Prints all labels and their probabilities; for a regression task (stsb) a number, for a
    multiple-choice task (swag) the endings given by --choice.
    """
    fields = ({} if pair is None else {"pair": pair}) | (
        {"choices": list(choices)} if choices else {}
    )
    classify.predict(request, options, fields)


def _show_entities(answer: Answer) -> RenderableType:
    """Return a line per entity: probability, type, text and position."""
    from rich.text import Text

    if not answer["entities"]:
        return Text("no entities", style="dim")
    if "explanation" in answer["entities"][0]:
        return _show_explained(answer["entities"], "type", "text")
    table = _rows()
    for entity in answer["entities"]:
        table.add_row(
            f"{entity['score']:.3f}",
            Text(entity["type"]),
            Text(entity["text"], style="bold"),
            Text(f"{entity['start']}–{entity['end']}", style="dim"),
        )
    return table


tag = InferenceCommand(
    "tag",
    help="Find the entities in texts.\n\nPrints the entities in the order of the text: text, type,"
    " start and end (characters, end exclusive), and score, the mean probability of the tags of"
    " their words.",
    text="One or more sentences.",
    show=_show_entities,
    spelled={"words": OptionOverride("--pretokenized")},
)


def show_answers(
    answer: Answer, source: Callable[[Answer], str] = lambda prediction: ""
) -> RenderableType:
    """Return a line per answer, best first: probability, answer, and its source or position."""
    from rich.text import Text

    table = _rows()
    for number, prediction in enumerate(answer["predictions"]):
        score = f"{prediction['score']:.3f}"
        if prediction["start"] is None:
            table.add_row(score, Text("(no answer)", style="dim"), "")
            continue
        text = " ".join(prediction["answer"].split())
        style = "bold" if number == 0 else ""
        place = source(prediction) or f"{prediction['start']}-{prediction['end']}"
        table.add_row(score, Text(text, style=style), Text(place, style="dim"))
    return table if "explanation" not in answer else _show_explanation(table, answer["explanation"])


@click.command(
    "answer",
    cls=InferenceCommand,
    field="question",
    text="Question about the passage.",
    show=show_answers,
)
@click.option(
    "--passage",
    metavar="TEXT",
    help="Text that contains the answer; in a JSONL file, the field passage.",
)
@click.option(
    "--passage-file",
    metavar="FILE",
    help="Text file with the passage, of any length; - is standard input.",
)
def answer(
    request: Request, options: Mapping[str, Any], passage: str | None, passage_file: str | None
) -> None:
    """Answer questions from a passage.

    Each answer has its probability among the printed ones, and its characters in the passage. A
    model that was trained on unanswerable questions (squad2) may print "(no answer)".
    """
    if passage is not None and passage_file is not None:
        raise click.UsageError(
            f"--passage and --passage-file ({passage_file}) exclude each other; leave one out"
        )
    if passage_file == STDIN and (not request.texts or STDIN in (*request.texts, request.file)):
        raise click.UsageError(
            "--passage-file - reads the passage from standard input; give the questions with"
            " --question or --file"
        )
    text = passage if passage_file is None else _read_passage(passage_file)
    answer.predict(request, options, {} if text is None else {"passage": text})


def _read_passage(path: str) -> str:
    from cloze.core.errors import DataError

    name = "standard input" if path == STDIN else path
    if path == STDIN:
        content = sys.stdin.buffer.read()
    elif not storage.exists(path) or storage.is_dir(path):
        raise DataError(f"{path} is not a file; name a text file with the passage")
    else:
        with storage.open_input(path) as handle:
            content = handle.read()
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {error.start + 1} is not UTF-8; convert the passage to UTF-8"
        ) from None
    if not text.strip():
        raise DataError(f"{name} is empty; give the text of the passage")
    return text


score = InferenceCommand(
    "score",
    stage="score-texts",
    help="Compute the log-probability of sentences.\n\nMasked models have pseudo-log-likelihoods."
    " For minimal pairs see `cloze score-pairs`.",
    text="Sentence to score.",
    show=lambda answer: f"{answer['score']:9.3f}  {answer['text']}",
)


def _show_masks(answer: Answer) -> RenderableType:
    """Return the best word of each mask, with the tokens that speak for it and their sides."""
    return _show_explained(answer["masks"], "token")


explain_mask = InferenceCommand(
    "explain-mask",
    help="Attribute a mask's word to its context.\n\nIntegrated gradients of the best"
    " word's logit, and which share of them lies left and right of the mask.",
    text="Text with [MASK].",
    show=_show_masks,
)
