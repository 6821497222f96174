"""What `cloze corpus --explain` prints: a document's way through the stage.

Enters the summary of the stage explain: a `pipeline.corpus.explain.Explanation` as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

Facts = Mapping[str, Any]  # a part of the explanation: a step, a change, a duplicate

MOST = 6  # changes, lines and sentences shown of each
MOST_FIELDS = 20  # of an infobox
LINE = 240  # characters of a text shown

_SIGNS = {"=": "dim", "-": "red strike", "+": "green", "…": "dim"}
_INVISIBLE = {"\n": "⏎", "\t": "⇥", "\u00a0": "⍽", "\r": "␍"}


def page(found: Facts) -> Group:
    """The whole explanation."""
    parts: list[RenderableType] = [_head(found), *map(_step, found["steps"])]
    if found["infobox"]:
        parts.append(_infobox(found["infobox"]))
    if found["sentences"] or found["dropped_sentences"]:
        parts.append(_sentences(found))
    return Group(*parts, _duplicates(found), _end(found))


def _head(found: Facts) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column(overflow="fold")
    text = sum(map(len, found["paragraphs"]))
    table.add_row("id", found["id"])
    table.add_row("file", found["file"])
    for name in ("url", "origin", "licence"):
        if found[name]:
            table.add_row(name, found[name])
    table.add_row("raw", f"{found['raw_bytes']:,} bytes")
    table.add_row("after the reader", f"{_count(len(found['paragraphs']), 'paragraph')}, {text:,} characters")
    if found["reader"]:
        table.add_row(
            "the reader dropped", ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in found["reader"].items())
        )
    shown = [Text(_short(paragraph), style="dim") for paragraph in found["paragraphs"][:2]]
    return Panel(
        Group(table, Text(""), *shown),
        title=Text(found["title"] or found["id"], style="bold"),
        title_align="left",
        border_style="cyan",
    )


def _infobox(fields: Sequence[tuple[str, str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", overflow="fold")
    table.add_column(overflow="fold")
    last = ""
    for box, name, value in fields[:MOST_FIELDS]:
        if box != last:
            table.add_row(Text(box, style="dim"), "")
        table.add_row(Text(name), Text(_short(value)))
        last = box
    rest = [Text(f"… {len(fields) - MOST_FIELDS:,} more fields", style="dim italic")] if len(fields) > MOST_FIELDS else []
    return Group(
        Rule(f"[bold]infobox  {_count(len(fields), 'field')}", align="left", style="cyan"),
        Padding(Group(table, *rest), (0, 0, 0, 2)),
    )


def _step(view: Facts) -> RenderableType:
    before, after = view["paragraphs"]
    lines: list[RenderableType] = []
    if view["reason"] is not None:
        told = f"{view['name']}  [red]dropped: {view['reason']}[/]"
        if view["detail"]:
            lines.append(Text(_short(view["detail"]), style="yellow"))
        lines.append(Text(f"{_count(before, 'paragraph')}, {view['characters'][0]:,} characters stood here", style="dim"))
    elif not view["changes"] and not view["removed"]:
        return Rule(f"[bold]{view['name']}[/]  [dim]nothing to do[/]", align="left", style="dim", characters="·")
    else:
        kinds = [sum(change["kind"] == kind for change in view["changes"]) for kind in ("changed", "removed", "added")]
        counts = [f"{n:,} {kind}" for n, kind in zip(kinds, ("changed", "removed", "added"), strict=True) if n]
        less = view["characters"][0] - view["characters"][1]
        size = f"  [dim]{before:,} → {after:,} paragraphs, {-less:+,} characters[/]"
        told = f"{view['name']}  {', '.join(counts) or 'lines taken out'}{size}"
    for reason, text in view["removed"][:MOST]:
        lines.append(Text.assemble(("− ", "red"), (f"{reason.replace('_', ' ')}  ", "yellow"), (_short(text), "dim")))
    lines += _rest(len(view["removed"]), "more taken out")
    shown = [change for change in view["changes"] if change["kind"] == "changed" or not view["removed"]]
    lines += [_change(change) for change in shown[:MOST]]
    lines += _rest(len(shown), "more changes")
    return Group(Rule(f"[bold]{told}", align="left", style="cyan"), Padding(Group(*lines), (0, 0, 0, 2)))


def _rest(count: int, what: str) -> list[RenderableType]:
    return [Text(f"… {count - MOST:,} {what}", style="dim italic")] if count > MOST else []


def _change(change: Facts) -> Text:
    text = Text.assemble((f"¶{change['paragraph']} ", "cyan"))
    for sign, piece in change["pieces"]:
        shown = "…" if sign == "…" else _visible(piece) if sign in "+-" else piece
        text.append(shown[:LINE] + ("…" if len(shown) > LINE else ""), style=_SIGNS[sign])
    return text


def _visible(text: str) -> str:
    """Blanks and characters that one does not see, as signs."""
    if not text.isspace() and text.isprintable():
        return text
    return "".join(
        _INVISIBLE.get(
            letter, "␣" if letter == " " and text.isspace() else letter if letter.isprintable() else f"⟨U+{ord(letter):04X}⟩"
        )
        for letter in text
    )


def _sentences(found: Facts) -> RenderableType:
    lines: list[RenderableType] = [
        Text.assemble((f"{number:>3} ", "cyan"), _short(sentence))
        for number, sentence in enumerate(found["sentences"][:MOST], 1)
    ]
    lines += _rest(len(found["sentences"]), "more sentences")
    for reason, sentence in found["dropped_sentences"][:MOST]:
        lines.append(Text.assemble(("  − ", "red"), (f"{reason}  ", "yellow"), (_short(sentence), "dim")))
    lines += _rest(len(found["dropped_sentences"]), "more sentences that something was taken out of")
    told = f"sentences  {len(found['sentences']):,}"
    return Group(Rule(f"[bold]{told}", align="left", style="cyan"), Padding(Group(*lines), (0, 0, 0, 2)))


def _duplicates(found: Facts) -> RenderableType:
    lines: list[RenderableType] = []
    if found["duplicate_of"] is not None:
        lines.append(Text.assemble(("a duplicate of ", "red"), *_duplicate(found["duplicate_of"])))
    if found["duplicates_in_all"]:
        lines.append(Text(f"{_count(found['duplicates_in_all'], 'document')} dropped in its favour:", style="green"))
        lines += [Text.assemble("  ", *_duplicate(other)) for other in found["duplicates"]]
        if found["duplicates_in_all"] > len(found["duplicates"]):
            lines.append(Text(f"  … {found['duplicates_in_all'] - len(found['duplicates']):,} more", style="dim italic"))
    if not lines:
        return Text("")
    return Group(Rule("[bold]duplicates", align="left", style="cyan"), Padding(Group(*lines), (0, 0, 0, 2)))


def _duplicate(other: Facts) -> list[Any]:
    told = f"  {other['reason'].replace('_', ' ')}, similarity {other['similarity']:.2f}, {other['characters']:,} characters"
    return [(other["title"] or other["id"], "bold"), ("  " + other["id"], "dim"), told]


def _end(found: Facts) -> RenderableType:
    if found["outcome"] == "kept":
        words = sum(len(sentence.split()) for sentence in found["sentences"])
        told = f"kept  {_count(len(found['sentences']), 'sentence')}, {words:,} words, in the split {found['split']}"
        return Panel(Text(told, style="bold green"), border_style="green", expand=False)
    return Panel(Text(f"dropped  {found['outcome']}", style="bold red"), border_style="red", expand=False)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    return text if len(text) <= LINE else text[:LINE] + "…"
