"""Commands of the lab, the headings of their options, and the report's pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.core.humanize import agree
from cloze.flows.commands.base.inference_command import Answer, InferenceCommand, Request
from cloze.flows.commands.base.options import SINGLE_DEVICE_FIELDS, GroupedOption
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage
from cloze.flows.report.report_nodes import ReportNode
from cloze.flows.report.section import ReportSection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloze.core.stages.execute import BuildResult


def _show_heads(answer: Answer) -> RenderableType:
    """Return a line per head: mean weights of neighbours, entropy, and the largest weight."""
    import numpy as np

    from cloze.flows.views import terminal

    tokens = [token.strip() for token in answer["tokens"]]
    names = ("head", "previous", "next", "itself", "first", "last", "entropy", "largest weight")
    table = terminal.table_of(names, right=names[:-1])
    for layer, heads in enumerate(answer["maps"], 1):
        for head, rows in enumerate(np.array(heads), 1):
            means = [
                rows.diagonal(offset).sum() / max(1, len(rows) - abs(offset))
                for offset in (-1, 1, 0)
            ]
            entropy = -(rows * np.log(np.where(rows > 0, rows, 1))).sum(axis=1).mean()
            means += [rows[:, 0].mean(), rows[:, -1].mean(), entropy]
            largest = rows.size - 1 - int(rows.flatten()[::-1].argmax())  # of equal ones the last
            query, key = divmod(largest, len(rows))
            link = f"{tokens[query]} → {tokens[key]} {rows[query, key]:.2f}"
            cells = (f"{layer}.{head}", *(f"{mean:.2f}" for mean in means))
            table.add_row(*cells, terminal.ellipsized(link))
    return table


@click.command("attention", cls=InferenceCommand, text="Text to read.", show=_show_heads)
@click.option("--pair", metavar="TEXT", help="Second text; in a JSONL file, the field pair.")
def attention(request: Request, options: Mapping[str, Any], pair: str | None) -> None:
    """Show a text's attention maps, by layer and head.

    With --out FILE.html, one page shows the maps of all texts; it needs no network. Otherwise the
    answers have the tokens and maps, and a terminal shows a line per head.
    """
    fields = {} if pair is None else {"pair": pair}
    if request.out is None or not request.out.lower().endswith(".html"):
        attention.predict(request, options, fields)
        return
    from cloze.labs.inside.attention_page import AttentionPage

    page = AttentionPage()

    def receive(answers: Sequence[Answer]) -> None:
        for answer in answers:
            page.add(answer)

    out = request.out

    def finish(summary: Mapping[str, Any]) -> str:
        count = page.write(out, request.checkpoint)
        return agree(f"the attention maps of {count:,} texts")

    attention.predict_into_file(request, {**options, "common": fields}, receive, finish)


SHOWN = 50  # characters on each side of an occurrence
svg_option = click.option(
    "--svg", cls=GroupedOption, metavar="FILE", help="Also draw the results to this SVG file."
)


def _show_neighbours(answer: Answer) -> RenderableType:
    """Return a line per nearest word, then each nearest occurrence with its surroundings."""
    from rich.console import Group
    from rich.text import Text

    lines = [
        Text.assemble(f"{row['score']:.3f}  ", (row["word"], "bold"))
        for row in answer.get("static", ())
    ]
    for row in answer.get("contexts", ()):
        text, start, end = row["sentence"], row["start"], row["end"]
        before = text[:start] if start <= SHOWN else f"…{text[start - SHOWN : start]}"
        after = text[end:] if len(text) <= end + SHOWN else f"{text[end : end + SHOWN]}…"
        source = ", ".join(filter(None, (row["title"], row["url"] or row["id"], row["licence"])))
        lines.append(
            Text.assemble(f"{row['score']:.3f}  ", before, (text[start:end], "bold"), after)
        )
        lines.append(Text(f"       {source}", style="dim"))
    return Group(*lines or [Text("nothing found", style="dim")])


@click.command(
    "neighbours", cls=InferenceCommand, field="word", text="Word to find.", show=_show_neighbours
)
@click.option(
    "--in",
    "sentence",
    metavar="TEXT",
    help="Sentence that contains the word; in a JSONL file, the field in.",
)
def neighbours(request: Request, options: Mapping[str, Any], sentence: str | None) -> None:
    """Find nearest occurrences of a word, and nearest words.

    Occurrences in --corpus are compared by their states in context with the word's in the sentence
    of --in; words by the static vectors of --static, or of CHECKPOINT if it has such.
    """
    neighbours.predict(request, options, {} if sentence is None else {"in": sentence})


@click.command("heads", cls=StageCommand, stage="heads", positional=("checkpoint",), transient=True)
@svg_option
def heads(arguments: StageArguments, svg: str | None) -> None:
    """Measure what each attention head attends to.

    Rows are those of --dataset, the lines of --texts, or the sentences of --treebank, which also
    scores the heads as parsers.
    """
    _run_and_draw(arguments, svg, "draw_heads", _print_heads)


def _print_heads(summary: Mapping[str, Any]) -> None:
    """Print the largest head of each kind, and the best head of each frequent relation."""
    from cloze.flows.views import terminal

    console = terminal.output()
    columns = ("attention to", "mean", "largest", "head")
    table = terminal.table_of(columns, right=columns[1:])
    for name, layers in summary["by_head"].items():
        values = [
            (value, f"{layer}.{head}")
            for layer, row in enumerate(layers, 1)
            for head, value in enumerate(row, 1)
            if value is not None
        ]
        if values:
            mean, (largest, head) = sum(value for value, _ in values) / len(values), max(values)
            table.add_row(name, f"{mean:.2f}", f"{largest:.2f}", head)
    console.print(table)
    relations = summary.get("relations", ())
    if relations:
        names = ("relation", "words", "head", "direction", "accuracy", "offset", "its accuracy")
        table = terminal.table_of(names, right=names[1:3] + names[4:])
        frequent = max(row["count"] for row in relations) / 100
        for row in (row for row in relations if row["count"] >= frequent):
            cells = f"{row['count']:,}", f"{row['layer']}.{row['head']}", row["direction"]
            scores = f"{row['accuracy']:.1%}", f"{row['offset']:+}", f"{row['offset_accuracy']:.1%}"
            table.add_row(row["relation"], *cells, *scores)
        console.print(table, markup=False)


@click.command("probe", cls=StageCommand, stage="probe", positional=("checkpoint",), transient=True)
@svg_option
def probe(arguments: StageArguments, svg: str | None) -> None:
    """Score probes of each layer of a frozen checkpoint.

    A probe is a small classifier of a layer's states; layer 0 is the embeddings. CHECKPOINT is a
    checkpoint, or an artifact that contains one.
    """
    _run_and_draw(arguments, svg, "draw_layers", _print_layers)


@click.command(
    "layers",
    cls=StageCommand,
    stage="layers",
    positional=("checkpoint", "texts"),
    inputs={"other": ("--other", "Checkpoint with the same tokenizer, to compare layers with.")},
    transient=True,
)
@svg_option
def layers(arguments: StageArguments, svg: str | None) -> None:
    """Measure how layers change states, and their similarity.

    CHECKPOINT is a checkpoint, or an artifact that contains one; TEXTS a file with a text per line.
    """
    _run_and_draw(arguments, svg, "draw_layers", _print_layers)


def _run_and_draw(
    arguments: StageArguments,
    svg: str | None,
    draw: str,
    print_summary: Callable[[Mapping[str, Any]], None],
) -> None:
    """Build the artifact, draw its summary, and print it unless the output is JSON.

    Args:
        svg: file to draw to; None: draw nothing.
        draw: function of `plots` that draws a summary as SVG.
    """

    def show(result: BuildResult) -> dict[str, Any]:
        from cloze.core import storage
        from cloze.labs.inside import plots

        summary = result.manifest.summary
        if svg is not None:
            storage.write_bytes(svg, getattr(plots, draw)(summary).encode())
        if not arguments.as_json:
            print_summary(summary)
        return {} if svg is None else {"svg": svg}

    run_stage(arguments, show)


def _print_layers(summary: Mapping[str, Any]) -> None:
    from cloze.flows.views import terminal

    rows = summary["layers"]
    columns = ["layer", *(name for name in rows[0] if name != "layer")]
    table = terminal.table_of([name.replace("_", " ") for name in columns])
    for row in rows:
        table.add_row(str(row["layer"]), *(f"{row[name]:.3f}" for name in columns[1:]))
    terminal.output().print(table)


@click.command(
    "prune",
    cls=StageCommand,
    stage="prune",
    positional=("checkpoint",),
    inputs={
        "rewind": (
            "--rewind",
            "With --sparsity: write this earlier checkpoint's weights, with the same zeros.",
        )
    },
)
def prune(arguments: StageArguments) -> None:
    """Remove layers, attention heads or weights of a checkpoint.

    The heads are those that matter least for the checkpoint's task. Prints the score by number of
    heads.
    """
    run_stage(arguments, None if arguments.as_json else _show_curve)


def _show_curve(result: BuildResult) -> dict[str, Any]:
    """Print the score by number of attention heads, if heads were removed."""
    from cloze.flows.views import terminal

    summary = result.manifest.summary
    if curve := summary.get("curve"):
        metric = next(iter(summary["metrics"]))
        table = terminal.table_of(("heads", metric), right=("heads", metric))
        for row in curve:
            table.add_row(str(row["heads"]), f"{row[metric]:.4f}")
        terminal.output().print(table)
    return {}


def _pictures(nodes: Sequence[ReportNode]) -> Sequence[Any]:
    from cloze.labs.inside import plots  # matplotlib

    return [*plots.layer_pictures(nodes), *plots.head_pictures(nodes)]


SECTION = ReportSection(pictures=_pictures)
PRUNE = {
    "What to keep": "*keep_heads *heads_by *keep_layers *layers_from *sparsity",
    "Choice of heads": "*data examples epochs seed",
    **SINGLE_DEVICE_FIELDS,
}
HEADS = {"Texts": "*texts *treebank *rows *max_length", **SINGLE_DEVICE_FIELDS}
PROBE = {
    "Task and data": "*task *data *target *limit",
    "Probes": "*hidden *baselines *seed",
    **SINGLE_DEVICE_FIELDS,
}
LAYERS = {"Text": "*texts *tokens", **SINGLE_DEVICE_FIELDS}
