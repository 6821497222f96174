"""The command generate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloze.flows.commands.base.inference_command import Answer, InferenceCommand

if TYPE_CHECKING:
    from rich.console import RenderableType


def _show_continuations(answer: Answer) -> RenderableType:
    """Return each continuation after its prompt, and its likeliest passage."""
    from rich.console import Group
    from rich.text import Text

    texts = []
    for row in answer["continuations"]:
        prompt = row["text"].removesuffix(row["continuation"])
        texts.append(Text.assemble((prompt, "dim"), (row["continuation"], "bold")))
        if "passages" in row:
            likeliest = row["passages"][0]
            names = likeliest["title"], likeliest["url"] or likeliest["document"]
            source = ", ".join(filter(None, (*names, likeliest["licence"])))
            texts.append(Text(source, style="dim"))
    return Group(*texts)


GENERATE = InferenceCommand(
    "generate",
    help="Continue a text, or write one for it (encoder-decoder).",
    text="Beginning of a text.",
    show=_show_continuations,
)
