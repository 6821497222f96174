"""`cloze answer`: a checkpoint of a task such as SQuAD, questions and passages in, ranked answers out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from flows.commands.verb_command import STDIN, Answer, Asked, ask, verb_options

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("answer")
@verb_options("question", "A question on the passage.")
@click.option("--passage", metavar="TEXT", help="The text that the answer stands in; in a JSONL file, the field passage.")
@click.option("--passage-file", metavar="FILE", help="The text file that is the passage, of any length; - is standard input.")
@click.option("--top", "top_k", type=click.IntRange(min=1), default=5, show_default=True, help="Answers a question.")
def answer(asked: Asked, passage: str | None, passage_file: str | None, top_k: int) -> None:
    """Answer QUESTION by a part of a passage.

    Each answer has its probability among those that are told, and its characters in the passage. A model that was trained on
    questions without answers (squad2) may also say that there is none: its answer is then empty.
    """
    if passage is not None and passage_file is not None:
        raise click.UsageError(f"--passage and --passage-file ({passage_file}) exclude each other; leave one out")
    if passage_file == STDIN and (not asked.texts or STDIN in (*asked.texts, asked.file)):
        raise click.UsageError(
            "--passage-file - leaves no standard input for the questions; give them with --question or --file"
        )
    text = passage if passage_file is None else _passage(passage_file)
    ask("answer", asked, {"top_k": top_k}, show, field="question", fields={} if text is None else {"passage": text})


def _passage(path: str) -> str:
    from pipeline.core import storage
    from pipeline.core.errors import DataError

    called = "standard input" if path == STDIN else path
    if path == STDIN:
        content = sys.stdin.buffer.read()
    else:
        if not storage.exists(path) or storage.is_dir(path):
            raise DataError(f"{path} is no file; name a text file that holds the passage")
        with storage.open_input(path) as handle:
            content = handle.read()
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{called}: byte {error.start + 1} is not UTF-8; convert the passage to UTF-8") from None
    if not text.strip():
        raise DataError(f"{called} is empty; it must hold the passage")
    return text


def show(answer: Answer) -> RenderableType:
    """A line an answer, best first: probability, answer, and where it stands."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for number, found in enumerate(answer["predictions"]):
        style = "bold" if number == 0 else ""
        none = found["start"] is None
        place = "" if none else f"{found['start']}-{found['end']}"
        words = Text("(no answer)", style="dim") if none else Text(" ".join(found["answer"].split()), style=style)
        table.add_row(f"{found['score']:.3f}", words, Text(place, style="dim"))
    return table
