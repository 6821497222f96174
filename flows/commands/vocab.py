"""`cloze vocab`: a corpus in, a tokenizer out; a tokenizer in, the same or a longer one out; tokenizers compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import RUNNER_NAMES, given, json_option, options, run_stage, runner_options

if TYPE_CHECKING:
    from pipeline.core.execute import Result

# Line of the table -> figure of `pipeline.vocab.measure`.
LINES = {
    "kind": "kind",
    "pieces in it": "size",
    "of them used": "vocabulary_used",
    "fertility (pieces a word)": "fertility",
    "words in one piece": "single_piece_words",
    "unknown pieces": "unknown_rate",
    "bytes a piece": "bytes_per_piece",
    "words in a row of 128": "words_in_128",
    "words in a row of 512": "words_in_512",
    "documents that fit in 128": "documents_in_128",
    "documents that fit in 512": "documents_in_512",
}
SHARES = {"single_piece_words", "unknown_rate", "vocabulary_used", "documents_in_128", "documents_in_512"}


@click.command()
@click.option("--corpus", metavar="DIR", help="A corpus artifact: what to learn from, and to measure with.")
@click.option("--kind", help="wordpiece (BERT), bpe (RoBERTa) or unigram (ALBERT).")
@click.option("--size", type=int, help="Pieces, special tokens included.")
@click.option("--lowercase/--cased", default=None, help="Lower the case, as BERT's uncased models do.")
@click.option("--import", "import_path", metavar="PATH", help="Take over a tokenizer as it is.")
@click.option("--extend", "extend_path", metavar="PATH", help="Take over a tokenizer, and add words behind its last piece.")
@click.option("--add", type=int, metavar="N", help="With --extend: the N words that shorten the corpus most.")
@click.option("--words", "words_path", metavar="FILE", help="With --extend: words to add, one a line.")
@click.option("--report", "only_report", is_flag=True, help="Make nothing: compare the tokenizers given by --against.")
@click.option("--against", multiple=True, metavar="PATH", help="Compare with this tokenizer, on held-out text; repeatable.")
@options(*runner_options)
@click.option("--out", metavar="DIR", help="The artifact's directory.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other config field of the stage.")
@click.option("--force", is_flag=True, help="Make it again, whatever is there.")
@json_option
def vocab(corpus: str | None, only_report: bool, against: tuple[str, ...], out: str | None, **how: Any) -> None:
    """Make a vocabulary: train one, import one, or extend one by words of a corpus; or compare some.

    PATH is a vocab artifact, a Hugging Face directory, a vocab.txt, a tokenizer.json, a vocab.json beside its
    merges.txt, or a spiece.model.
    """
    if (only_report or against) and corpus is None:
        raise click.UsageError("--report and --against measure on held-out text; give --corpus DIR")
    names = ("kind", "size", "lowercase", "import_path", "extend_path", "add", "words_path")
    values = given(**{name: how[name] for name in names})
    if only_report:
        if not against or values or out is not None:
            raise click.UsageError(
                "--report compares the tokenizers given by --against, and makes nothing; give those and --corpus"
            )
        assert corpus is not None
        _only_report(corpus, against, how["as_json"])
        return
    if out is None:
        raise click.UsageError("Missing option '--out'; name the artifact's directory (or compare tokenizers by --report)")
    if "kind" in values and ("import_path" in values or "extend_path" in values):
        raise click.UsageError(f"--kind ({values['kind']}) is for training; a tokenizer taken over has its own: leave it out")
    compare = _comparison(corpus, against) if corpus is not None and against else None
    execution = given(**{name: how[name] for name in RUNNER_NAMES})
    how = {name: how[name] for name in ("settings", "force", "as_json")}
    run_stage("vocab", values, {"corpus": corpus}, execution, out=out, more=compare, **how)


def _only_report(corpus: str, against: Sequence[str], as_json: bool) -> None:
    from rich.console import Console

    from flows.cli import emit
    from pipeline.vocab.compare import compare

    rows = compare(corpus, against)
    Console(highlight=False, stderr=as_json).print(_table(rows))
    if as_json:
        emit({"report": rows})


def _comparison(corpus: str, against: Sequence[str]) -> Callable[[Result], dict[str, Any]]:
    """What is told of a made vocabulary: its figures beside those of others."""

    def more(result: Result) -> dict[str, Any]:
        from flows.views import terminal
        from pipeline.vocab.compare import compare

        rows = compare(corpus, [result.artifact, *against])
        terminal.console().print(_table(rows))
        return {"report": rows}

    return more


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    """A column a tokenizer."""
    from rich.table import Table

    first = rows[0]
    title = f"{first['documents']:,} documents, {first['words']:,} words, {first['bytes']:,} bytes of held-out text"
    table = Table(box=None, header_style="bold", title=title, title_justify="left", title_style="dim")
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row["tokenizer"].rstrip("/").rsplit("/", 1)[-1], justify="right", overflow="fold")
    for line, figure in LINES.items():
        table.add_row(line, *(_shown(figure, row[figure]) for row in rows))
    return table


def _shown(figure: str, value: Any) -> str:
    if figure in SHARES:
        return f"{100 * value:.3f} %" if figure == "unknown_rate" else f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)
