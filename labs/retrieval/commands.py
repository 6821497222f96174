"""Commands of the lab, and the headings of their options."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from cloze.flows.commands.base.inference_command import Answer, InferenceCommand
from cloze.flows.commands.base.stage_command import StageCommand
from cloze.labs.serving.commands import show_answers

if TYPE_CHECKING:
    from rich.console import RenderableType

OF_INDEX = {"Passages": "*passage_words"}
OF_ENTITIES = {"Memory and speed": "*precision *micro_batch engine"}

index = StageCommand(
    "index",
    stage="index",
    help="Cut a corpus into passages, and index their words.\n\n`cloze search` and `cloze"
    " answer-corpus` read the index. `cloze embed-corpus --corpus INDEX` adds vectors of the"
    " passages.",
    inputs={"append": ("--append", "Index whose files are reused for unchanged shards.")},
)

tag_corpus = StageCommand(
    "tag-corpus",
    stage="entities",
    help="Find the named entities and dates of a corpus.\n\n`cloze dataset --recipe realm"
    " --entities DIR` masks them.",
)


def _show_passages(answer: Answer) -> RenderableType:
    """Return each passage after its score, title and source."""
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    for row in answer["results"]:
        source = ", ".join(filter(None, (row["url"] or row["document"], row["licence"])))
        lines.append(Text.assemble(f"{row['score']:.3f}  ", (row["title"], "bold"), f"  {source}"))
        lines.append(Text(f"{row['text']}\n", style="dim"))
    return Group(*lines or [Text("nothing found", style="dim")])


search = InferenceCommand(
    "search",
    target="index",
    field="query",
    help="Find passages of a corpus, with their sources.\n\nINDEX is made by `cloze index`, or has"
    " the vectors of its passages: `cloze embed-corpus --corpus INDEX`.",
    text="Query.",
    show=_show_passages,
)


def passage_source(prediction: Answer) -> str:
    """Return title, address and licence of the passage of an answer; empty without a corpus."""
    passage = prediction.get("passage")
    if passage is None:
        return ""
    names = passage["title"], passage["url"] or passage["document"], passage["licence"]
    return ", ".join(filter(None, names))


answer_corpus = InferenceCommand(
    "answer-corpus",
    field="question",
    help="Answer questions from a corpus, with sources.\n\n--corpus is made by `cloze index`. The"
    " passages that the search finds are read as one text; each answer has the source of its"
    " passage.",
    text="Question.",
    show=functools.partial(show_answers, source=passage_source),
)
