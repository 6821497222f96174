"""`cloze vocab`: a corpus in, a tokenizer out; a tokenizer in, the same or a longer one out; tokenizers compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import emit
from flows.commands.spelling import Spelled
from flows.commands.stage_command import Given, StageCommand, run_stage

if TYPE_CHECKING:
    from pipeline.core.execute import Result


@click.command(
    cls=StageCommand,
    stage="vocab",
    demanding=False,
    inputs={"corpus": ("--corpus", "A corpus artifact: what to learn from, and to measure with.")},
    spelled={
        "lowercase": Spelled("--lowercase/--cased", settings={"switch": False}),
        "import_path": Spelled("--import"),
        "extend_path": Spelled("--extend"),
        "words_path": Spelled("--words"),
    },
)
@click.option("--report", "only_report", is_flag=True, help="Make nothing: compare the tokenizers given by --against.")
@click.option("--against", multiple=True, metavar="PATH", help="Compare with this tokenizer, on held-out text; repeatable.")
def vocab(given: Given, only_report: bool, against: tuple[str, ...]) -> None:
    """Make a vocabulary: train one, import one, or extend one by words of a corpus; or compare some.

    PATH is a vocab artifact, a Hugging Face directory, a vocab.txt, a tokenizer.json, a vocab.json beside its
    merges.txt, or a spiece.model.
    """
    corpus = given.inputs.get("corpus")
    if (only_report or against) and corpus is None:
        raise click.UsageError("--report and --against measure on held-out text; give --corpus DIR")
    if only_report:
        if not against or given.config or given.overrides or given.out is not None:
            raise click.UsageError(
                "--report compares the tokenizers given by --against, and makes nothing; give those and --corpus"
            )
        _only_report(corpus, against, given.as_json)
        return
    if given.out is None:
        raise click.UsageError("Missing option '--out'; name the artifact's directory (or compare tokenizers by --report)")
    taken_over = given.config.keys() & {"import_path", "extend_path"}
    if "kind" in given.config and taken_over:
        raise click.UsageError(
            f"--kind ({given.config['kind']}) is for training; a tokenizer taken over has its own: leave it out"
        )

    def compare(result: Result) -> dict[str, Any]:
        """The figures of the made vocabulary beside those of others."""
        from flows.views import terminal
        from flows.views.tokenizers import comparison

        rows = _measured(corpus, [result.artifact, *against])
        terminal.console().print(comparison(rows))
        return {"report": rows}

    run_stage(given, compare if against else None)


def _only_report(corpus: str | None, against: Sequence[str], as_json: bool) -> None:
    from rich.console import Console

    from flows.views.tokenizers import comparison

    rows = _measured(corpus, against)
    Console(highlight=False, stderr=as_json).print(comparison(rows))
    if as_json:
        emit({"report": rows})


def _measured(corpus: str | None, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Every tokenizer's figures on the corpus's held-out text."""
    from flows.graph.tools import run_tool

    inputs = {} if corpus is None else {"corpus": corpus}
    rows: list[dict[str, Any]] = run_tool("compare-vocab", {"tokenizers": list(paths)}, inputs, where="vocab")["report"]
    return rows
