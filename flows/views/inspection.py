"""Terminal views of a dataset row, a tokenizer comparison and a document's processing.

A row view is the summary of the stage inspect: `cloze.pipeline.dataset.row_view.RowView` as JSON,
and the `texts` of its tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cloze.core.humanize import agree
from cloze.core.words import count_words
from cloze.flows.views.terminal import table_of

Row = Mapping[str, Any]
MASKED, RANDOM, UNCHANGED = "masked", "random", "kept"  # kinds of predictions
RULED = 100  # columns of a ruled heading

STYLES = {
    MASKED: "bold black on yellow",
    RANDOM: "bold white on red",
    UNCHANGED: "bold black on green",
}
MARKS = "Ġ▁"  # markers of a space in a token
MEANINGS = {
    MASKED: "the model sees [MASK]",
    RANDOM: "it sees the piece after the arrow",
    UNCHANGED: "it sees the piece itself",
}


def render(view: Row) -> RenderableType:
    """Render a row: metadata, text by segment or packed sequence, and the legend of the colours."""
    facts = _grid()
    for name, value in _facts(view):
        facts.add_row(name, Text(value))
    return Group(facts, Text(), _segments(view), Text(), _legend(view))


def _facts(view: Row) -> list[tuple[str, str]]:
    lengths, predictions = view["lengths"], len(view["predictions"])
    facts = [
        ("row", f"{view['row']:,} of {view['rows']:,}, {view['split']}, recipe {view['recipe']}"),
        ("file", view["file"]),
        ("source", f"document {int(view['document']):#018x}, from its sentence {view['offset']}"),
        (
            "length",
            f"{lengths['row']} tokens: A {lengths['A']}, B {lengths['B']},"
            f" special {len(view['special'])}",
        ),
        (
            "mask",
            f"copy {view['copy']} of {view['copies']}, drawing {view['drawing']} of "
            f"{view['drawings']}: {predictions} predictions, "
            f"{predictions / max(1, lengths['row']):.1%} of the tokens",
        ),
    ]
    if view["pair_task"] is not None:
        facts.insert(2, (view["pair_task"].upper(), view["pair_label"] or "no label"))
    starts = view["boundaries"]
    if starts is not None:
        first = ", ".join(map(str, starts))
        facts.append(("packed", f"sequences: {len(starts)}, which begin at {first}"))
    return facts


def _segments(view: Row) -> RenderableType:
    """Return one paragraph per segment or packed sequence."""
    length = len(view["pieces"])
    begins = [(0, "segment A")]
    if view["boundaries"] is not None:
        begins = [
            (start, f"sequence {number}") for number, start in enumerate(view["boundaries"], 1)
        ]
    elif view["segment_start"] < length:
        begins.append((view["segment_start"], "segment B"))
    grid = _grid()
    for (begin, name), end in zip(
        begins, [*(start for start, _ in begins[1:]), length], strict=True
    ):
        grid.add_row(name, _text(view, begin, end))
    return grid


def _grid(**style: Any) -> Table:
    """Return a borderless table of names and values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(**(style or {"style": "bold cyan", "no_wrap": True}))
    grid.add_column(overflow="fold")
    return grid


def _text(view: Row, begin: int, end: int) -> Text:
    predicted = {prediction["position"]: prediction for prediction in view["predictions"]}
    special, text = set(view["special"]), Text()
    for position in range(begin, end):
        token = view["texts"][position]
        prediction = predicted.get(position)
        if position in special:
            text.append(f"{'' if position == begin else ' '}{token.strip()} ", "dim magenta")
        elif prediction is None:
            text.append(token)
        else:
            word, shown = token.lstrip(), prediction["shown"]
            is_random = prediction["kind"] == RANDOM
            arrow = f"→{shown.lstrip(MARKS) or shown}" if is_random else ""
            text.append(token[: len(token) - len(word)])
            text.append(f"{word}{arrow}", STYLES[prediction["kind"]])
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
SHARES = set(  # metrics that are shown in percent
    "single_piece_words unknown_rate unknown_characters vocabulary_used documents_in_128"
    " documents_in_512".split()
)


def comparison(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a comparison of tokenizers from rows of the summary of stage compare-vocab."""
    text = rows[0]
    title = agree(
        f"{text['documents']:,} documents, {text['words']:,} words, "
        f"{text['bytes']:,} bytes of held-out text"
    )
    names = [row["tokenizer"].rstrip("/").rsplit("/", 1)[-1] for row in rows]
    table = table_of(["", *names], right=names, title=title)
    table.columns[0].no_wrap = True
    for line, metric in LINES.items():
        table.add_row(line, *(_shown(metric, row[metric]) for row in rows))
    return table


def _shown(metric: str, value: Any) -> str:
    if metric in SHARES:
        return f"{100 * value:.{3 if metric.startswith('unknown') else 1}f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)


# Output of `cloze explain`: what each step of the corpus stage did to a document.

Facts = Mapping[str, Any]  # a part of the explanation: a step, a change, a duplicate

MOST = 6  # maximum number of changes, lines and sentences shown
MOST_FIELDS = 20  # maximum number of infobox fields shown
LINE = 240  # maximum number of characters of a text shown

_SIGNS = {"=": "dim", "-": "red strike", "+": "green", "…": "dim"}
_INVISIBLE = {"\n": "⏎", "\t": "⇥", "\u00a0": "⍽", "\r": "␍"}


def page(document: Facts) -> Group:
    """Return the complete explanation."""
    sections: list[RenderableType] = [_head(document), *map(_step, document["steps"])]
    if document["infobox"]:
        sections.append(_infobox(document["infobox"]))
    if document["sentences"] or document["dropped_sentences"]:
        sections.append(_sentences(document))
    return Group(*sections, _duplicates(document), _end(document))


def _head(document: Facts) -> RenderableType:
    table = _grid(style="dim", justify="right")
    paragraphs, dropped = document["paragraphs"], document["reader"].items()
    characters = sum(map(len, paragraphs))
    rows = {name: document[name] for name in ("id", "file", "url", "origin", "licence")}
    rows |= {
        "raw": f"{document['raw_bytes']:,} bytes",
        "after the reader": f"{_count(len(paragraphs), 'paragraph')}, {characters:,} characters",
        "the reader dropped": ", ".join(
            f"{reason.replace('_', ' ')} {count:,}" for reason, count in dropped
        ),
    }
    for name, value in rows.items():
        if value or name in ("id", "file"):
            table.add_row(name, Text(value))
    excerpts = [Text(_short(paragraph), style="dim") for paragraph in paragraphs[:2]]
    return Panel(
        Group(table, Text(""), *excerpts),
        title=Text(document["title"] or document["id"], style="bold"),
        title_align="left",
        border_style="cyan",
        expand=False,
    )


def _section(heading: str, lines: Sequence[RenderableType]) -> RenderableType:
    """Return indented lines below a ruled heading."""
    rule = Rule(f"[bold]{heading}", align="left", style="cyan")
    return Group(Constrain(rule, RULED), Padding.indent(Group(*lines), 2))


def _infobox(fields: Sequence[tuple[str, str, str]]) -> RenderableType:
    table = _grid(style="cyan", overflow="fold")
    previous_box = ""
    for box, name, value in fields[:MOST_FIELDS]:
        if box != previous_box:
            table.add_row(Text(box, style="dim"), "")
        table.add_row(Text(name), Text(_short(value)))
        previous_box = box
    heading = f"infobox  {_count(len(fields), 'field')}"
    return _section(heading, [table, *_rest(len(fields), "more fields", MOST_FIELDS)])


def _step(view: Facts) -> RenderableType:
    (before, after), (size, new_size) = view["paragraphs"], view["characters"]
    name, changes, removed = view["name"], view["changes"], view["removed"]
    lines: list[RenderableType] = []
    if view["reason"] is not None:
        heading = f"{name}  [red]dropped: {view['reason']}[/]"
        if view["detail"]:
            lines.append(Text(_short(view["detail"]), style="yellow"))
        text = f"{_count(before, 'paragraph')}, {size:,} characters stood here"
        lines.append(Text(text, style="dim"))
    elif not changes and not removed:
        heading = f"[bold]{name}[/]  [dim]nothing to do[/]"
        rule = Rule(heading, align="left", style="dim", characters="·")
        return Constrain(rule, RULED)
    else:
        by_kind = Counter(change["kind"] for change in changes)
        kinds = [kind for kind in ("changed", "removed", "added") if by_kind[kind]]
        counts = ", ".join(f"{by_kind[kind]:,} {kind}" for kind in kinds) or "lines taken out"
        difference = f"{before:,} → {after:,} paragraphs, {new_size - size:+,} characters"
        heading = f"{name}  {counts}  [dim]{difference}[/]"
    lines += [
        _dropped("− ", reason.replace("_", " "), text, "dim") for reason, text in removed[:MOST]
    ]
    lines += _rest(len(removed), "more taken out")
    changes = [change for change in changes if change["kind"] == "changed" or not removed]
    lines += [_change(change) for change in changes[:MOST]]
    return _section(heading, [*lines, *_rest(len(changes), "more changes")])


def _dropped(mark: str, reason: str, text: str, style: str = "") -> Text:
    return Text.assemble((mark, "red"), (f"{reason}  ", "yellow"), (_short(text), style))


def _rest(count: int, name: str, shown: int = MOST) -> list[RenderableType]:
    return [Text(f"… {count - shown:,} {name}", style="dim italic")] if count > shown else []


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
    signs = {**_INVISIBLE, " ": "␣"} if text.isspace() else _INVISIBLE
    return "".join(
        signs.get(letter, letter if letter.isprintable() else f"⟨U+{ord(letter):04X}⟩")
        for letter in text
    )


def _sentences(document: Facts) -> RenderableType:
    sentences, dropped = document["sentences"], document["dropped_sentences"]
    lines: list[RenderableType] = [
        Text.assemble((f"{number:>3} ", "cyan"), _short(sentence))
        for number, sentence in enumerate(sentences[:MOST], 1)
    ]
    lines += _rest(len(sentences), "more sentences")
    lines += [_dropped("  − ", reason, sentence) for reason, sentence in dropped[:MOST]]
    lines += _rest(len(dropped), "more sentences that something was taken out of")
    return _section(f"sentences  {len(sentences):,}", lines)


def _duplicates(document: Facts) -> RenderableType:
    lines: list[RenderableType] = []
    original, total = document["duplicate_of"], document["duplicates_in_all"]
    shown = document["duplicates"]
    if original is not None:
        lines.append(Text.assemble(("a duplicate of ", "red"), *_duplicate(original)))
    if total:
        lines.append(Text(f"{_count(total, 'document')} dropped in its favour:", style="green"))
        lines += [Text.assemble("  ", *_duplicate(duplicate)) for duplicate in shown]
        if total > len(shown):
            lines.append(Text(f"  … {total - len(shown):,} more", style="dim italic"))
    return _section("duplicates", lines) if lines else Text("")


def _duplicate(other: Facts) -> list[Any]:
    facts = (
        f"  {other['reason'].replace('_', ' ')}, similarity {other['similarity']:.2f}, "
        f"{other['characters']:,} characters"
    )
    return [(other["title"] or other["id"], "bold"), ("  " + other["id"], "dim"), facts]


def _end(document: Facts) -> RenderableType:
    text, colour = f"dropped  {document['outcome']}", "red"
    if document["outcome"] == "kept":
        sentences, colour = document["sentences"], "green"
        words = sum(map(count_words, sentences))
        text = (
            f"kept  {_count(len(sentences), 'sentence')}, {words:,} words, "
            f"in the split {document['split']}"
        )
    return Panel(Text(text, style=f"bold {colour}"), border_style=colour, expand=False)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    return text if len(text) <= LINE else text[:LINE] + "…"
