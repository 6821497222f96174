"""Terminal views of a dataset row, a tokenizer comparison and a document's processing.

A row view is the summary of the stage inspect: `cloze.pipeline.dataset.row_view.RowView` as JSON,
and the `texts` of its tokens.
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

from cloze.core.words import count_words

Row = Mapping[str, Any]
MASKED, RANDOM, KEPT = "masked", "random", "kept"  # kinds of predictions

STYLES = {MASKED: "bold black on yellow", RANDOM: "bold white on red", KEPT: "bold black on green"}
MARKS = "Ġ▁"  # markers of a space in a token
MEANINGS = {
    MASKED: "the model sees [MASK]",
    RANDOM: "it sees the piece after the arrow",
    KEPT: "it sees the piece itself",
}


def render(view: Row) -> RenderableType:
    """Render a row: metadata, text by segment or packed sequence, and the legend of the colours."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(view):
        facts.add_row(name, value)
    return Group(facts, Text(), *_segments(view), Text(), _legend(view))


def _facts(view: Row) -> list[tuple[str, str]]:
    special = len(view["special"])
    facts = [
        ("row", f"{view['row']:,} of {view['rows']:,}, {view['split']}, recipe {view['recipe']}"),
        ("file", view["file"]),
        ("source", f"document {int(view['document']):#018x}, from its sentence {view['offset']}"),
        (
            "length",
            f"{view['lengths']['row']} tokens: A {view['lengths']['A']}, B {view['lengths']['B']},"
            f" special {special}",
        ),
        (
            "mask",
            f"copy {view['copy']} of {view['copies']}: {len(view['predictions'])} predictions, "
            f"{_share(view)}",
        ),
    ]
    if view["pair_task"] is not None:
        facts.insert(2, (view["pair_task"].upper(), view["pair_label"] or "no label"))
    if view["boundaries"] is not None:
        facts.append(
            (
                "packed",
                f"sequences: {len(view['boundaries'])}, which begin at "
                f"{', '.join(map(str, view['boundaries']))}",
            )
        )
    return facts


def _share(view: Row) -> str:
    return f"{len(view['predictions']) / max(1, view['lengths']['row']):.1%} of the tokens"


def _segments(view: Row) -> list[RenderableType]:
    """Return one paragraph per segment or packed sequence."""
    length = len(view["pieces"])
    if view["boundaries"] is not None:
        begins = [
            (position, f"sequence {number + 1}")
            for number, position in enumerate(view["boundaries"])
        ]
    elif view["segment_start"] < length:
        begins = [(0, "segment A"), (view["segment_start"], "segment B")]
    else:
        begins = [(0, "segment A")]
    ends = [position for position, _ in begins[1:]] + [length]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for (begin, name), end in zip(begins, ends, strict=True):
        grid.add_row(name, _text(view, begin, end))
    return [grid]


def _text(view: Row, begin: int, end: int) -> Text:
    predicted = {prediction["position"]: prediction for prediction in view["predictions"]}
    special, text = set(view["special"]), Text()
    for position in range(begin, end):
        token_text = view["texts"][position]
        prediction = predicted.get(position)
        if position in special:
            text.append(
                f"{'' if position == begin else ' '}{token_text.strip()} ", style="dim magenta"
            )
        elif prediction is None:
            text.append(token_text)
        else:
            text.append(token_text[: len(token_text) - len(token_text.lstrip())])
            arrow = (
                f"→{prediction['shown'].lstrip(MARKS) or prediction['shown']}"
                if prediction["kind"] == RANDOM
                else ""
            )
            text.append(f"{token_text.lstrip()}{arrow}", style=STYLES[prediction["kind"]])
    return text


def _legend(view: Row) -> Text:
    text = Text()
    for kind, style in STYLES.items():
        count = sum(prediction["kind"] == kind for prediction in view["predictions"])
        text.append(f" {kind} ", style=style)
        text.append(f" {count}, {MEANINGS[kind]}   ", style="dim")
    return text


# Comparison of tokenizers: a column each, a line per metric of
# `cloze.pipeline.vocab.tokenizer_metrics`.

LINES = {  # line of the table -> metric
    "kind": "kind",
    "pieces in it": "size",
    "of them used": "vocabulary_used",
    "fertility (pieces a word)": "fertility",
    "words in one piece": "single_piece_words",
    "unknown pieces": "unknown_rate",
    "unknown characters": "unknown_characters",
    "bytes a piece": "bytes_per_piece",
    "words in a row of 128": "words_in_128",
    "words in a row of 512": "words_in_512",
    "documents that fit in 128": "documents_in_128",
    "documents that fit in 512": "documents_in_512",
}
SHARES = {
    "single_piece_words",
    "unknown_rate",
    "unknown_characters",
    "vocabulary_used",
    "documents_in_128",
    "documents_in_512",
}


def comparison(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a comparison of tokenizers from rows of the summary of stage compare-vocab."""
    first_row = rows[0]
    title = (
        f"{first_row['documents']:,} documents, {first_row['words']:,} words, "
        f"{first_row['bytes']:,} bytes of held-out text"
    )
    table = Table(
        box=None, header_style="bold", title=title, title_justify="left", title_style="dim"
    )
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(
            row["tokenizer"].rstrip("/").rsplit("/", 1)[-1], justify="right", overflow="fold"
        )
    for line, figure in LINES.items():
        table.add_row(line, *(_shown(figure, row[figure]) for row in rows))
    return table


def _shown(figure: str, value: Any) -> str:
    if figure in SHARES:
        return f"{100 * value:.3f} %" if figure.startswith("unknown") else f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)


# Output of `cloze explain`: what each step of the corpus stage did to a document.

Facts = Mapping[str, Any]  # a part of the explanation: a step, a change, a duplicate

MOST = 6  # maximum number of changes, lines and sentences shown
MOST_FIELDS = 20  # maximum number of infobox fields shown
LINE = 240  # maximum number of characters of a text shown

_SIGNS = {"=": "dim", "-": "red strike", "+": "green", "…": "dim"}
_INVISIBLE = {"\n": "⏎", "\t": "⇥", "\u00a0": "⍽", "\r": "␍"}


def page(found: Facts) -> Group:
    """Return the complete explanation."""
    sections: list[RenderableType] = [_head(found), *map(_step, found["steps"])]
    if found["infobox"]:
        sections.append(_infobox(found["infobox"]))
    if found["sentences"] or found["dropped_sentences"]:
        sections.append(_sentences(found))
    return Group(*sections, _duplicates(found), _end(found))


def _head(found: Facts) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column(overflow="fold")
    character_count = sum(map(len, found["paragraphs"]))
    table.add_row("id", found["id"])
    table.add_row("file", found["file"])
    for name in ("url", "origin", "licence"):
        if found[name]:
            table.add_row(name, found[name])
    table.add_row("raw", f"{found['raw_bytes']:,} bytes")
    table.add_row(
        "after the reader",
        f"{_count(len(found['paragraphs']), 'paragraph')}, {character_count:,} characters",
    )
    if found["reader"]:
        table.add_row(
            "the reader dropped",
            ", ".join(
                f"{reason.replace('_', ' ')} {count:,}" for reason, count in found["reader"].items()
            ),
        )
    excerpts = [Text(_short(paragraph), style="dim") for paragraph in found["paragraphs"][:2]]
    return Panel(
        Group(table, Text(""), *excerpts),
        title=Text(found["title"] or found["id"], style="bold"),
        title_align="left",
        border_style="cyan",
    )


def _infobox(fields: Sequence[tuple[str, str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", overflow="fold")
    table.add_column(overflow="fold")
    previous_box = ""
    for box, name, value in fields[:MOST_FIELDS]:
        if box != previous_box:
            table.add_row(Text(box, style="dim"), "")
        table.add_row(Text(name), Text(_short(value)))
        previous_box = box
    remainder = (
        [Text(f"… {len(fields) - MOST_FIELDS:,} more fields", style="dim italic")]
        if len(fields) > MOST_FIELDS
        else []
    )
    return Group(
        Rule(f"[bold]infobox  {_count(len(fields), 'field')}", align="left", style="cyan"),
        Padding(Group(table, *remainder), (0, 0, 0, 2)),
    )


def _step(view: Facts) -> RenderableType:
    before, after = view["paragraphs"]
    lines: list[RenderableType] = []
    if view["reason"] is not None:
        heading = f"{view['name']}  [red]dropped: {view['reason']}[/]"
        if view["detail"]:
            lines.append(Text(_short(view["detail"]), style="yellow"))
        lines.append(
            Text(
                f"{_count(before, 'paragraph')}, {view['characters'][0]:,} characters stood here",
                style="dim",
            )
        )
    elif not view["changes"] and not view["removed"]:
        return Rule(
            f"[bold]{view['name']}[/]  [dim]nothing to do[/]",
            align="left",
            style="dim",
            characters="·",
        )
    else:
        change_counts = [
            sum(change["kind"] == kind for change in view["changes"])
            for kind in ("changed", "removed", "added")
        ]
        counts = [
            f"{count:,} {kind}"
            for count, kind in zip(change_counts, ("changed", "removed", "added"), strict=True)
            if count
        ]
        removed_characters = view["characters"][0] - view["characters"][1]
        size = f"  [dim]{before:,} → {after:,} paragraphs, {-removed_characters:+,} characters[/]"
        heading = f"{view['name']}  {', '.join(counts) or 'lines taken out'}{size}"
    for reason, text in view["removed"][:MOST]:
        lines.append(
            Text.assemble(
                ("− ", "red"), (f"{reason.replace('_', ' ')}  ", "yellow"), (_short(text), "dim")
            )
        )
    lines += _rest(len(view["removed"]), "more taken out")
    changes = [
        change for change in view["changes"] if change["kind"] == "changed" or not view["removed"]
    ]
    lines += [_change(change) for change in changes[:MOST]]
    lines += _rest(len(changes), "more changes")
    return Group(
        Rule(f"[bold]{heading}", align="left", style="cyan"), Padding(Group(*lines), (0, 0, 0, 2))
    )


def _rest(count: int, what: str) -> list[RenderableType]:
    return [Text(f"… {count - MOST:,} {what}", style="dim italic")] if count > MOST else []


def _change(change: Facts) -> Text:
    text = Text.assemble((f"¶{change['paragraph']} ", "cyan"))
    for sign, piece in change["pieces"]:
        displayed = "…" if sign == "…" else _visible(piece) if sign in "+-" else piece
        text.append(displayed[:LINE] + ("…" if len(displayed) > LINE else ""), style=_SIGNS[sign])
    return text


def _visible(text: str) -> str:
    """Replace whitespace and invisible characters by visible signs."""
    if not text.isspace() and text.isprintable():
        return text
    return "".join(
        _INVISIBLE.get(
            letter,
            "␣"
            if letter == " " and text.isspace()
            else letter
            if letter.isprintable()
            else f"⟨U+{ord(letter):04X}⟩",
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
        lines.append(
            Text.assemble(("  − ", "red"), (f"{reason}  ", "yellow"), (_short(sentence), "dim"))
        )
    lines += _rest(
        len(found["dropped_sentences"]), "more sentences that something was taken out of"
    )
    heading = f"sentences  {len(found['sentences']):,}"
    return Group(
        Rule(f"[bold]{heading}", align="left", style="cyan"), Padding(Group(*lines), (0, 0, 0, 2))
    )


def _duplicates(found: Facts) -> RenderableType:
    lines: list[RenderableType] = []
    if found["duplicate_of"] is not None:
        lines.append(Text.assemble(("a duplicate of ", "red"), *_duplicate(found["duplicate_of"])))
    if found["duplicates_in_all"]:
        lines.append(
            Text(
                f"{_count(found['duplicates_in_all'], 'document')} dropped in its favour:",
                style="green",
            )
        )
        lines += [Text.assemble("  ", *_duplicate(duplicate)) for duplicate in found["duplicates"]]
        if found["duplicates_in_all"] > len(found["duplicates"]):
            lines.append(
                Text(
                    f"  … {found['duplicates_in_all'] - len(found['duplicates']):,} more",
                    style="dim italic",
                )
            )
    if not lines:
        return Text("")
    return Group(
        Rule("[bold]duplicates", align="left", style="cyan"), Padding(Group(*lines), (0, 0, 0, 2))
    )


def _duplicate(other: Facts) -> list[Any]:
    facts = (
        f"  {other['reason'].replace('_', ' ')}, similarity {other['similarity']:.2f}, "
        f"{other['characters']:,} characters"
    )
    return [(other["title"] or other["id"], "bold"), ("  " + other["id"], "dim"), facts]


def _end(found: Facts) -> RenderableType:
    if found["outcome"] == "kept":
        word_count = sum(map(count_words, found["sentences"]))
        verdict = (
            f"kept  {_count(len(found['sentences']), 'sentence')}, {word_count:,} words, "
            f"in the split {found['split']}"
        )
        return Panel(Text(verdict, style="bold green"), border_style="green", expand=False)
    return Panel(
        Text(f"dropped  {found['outcome']}", style="bold red"), border_style="red", expand=False
    )


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    return text if len(text) <= LINE else text[:LINE] + "…"
