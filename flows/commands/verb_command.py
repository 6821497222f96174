"""What the verbs on a checkpoint share: what they read, and how their answers are printed. `model.use.verb` says how to add one.

Read are the texts on the command line, or the lines of `--file` (JSON objects where its name ends in .jsonl), or standard input: where
`-` stands for a text or a file, and where nothing else is given and it is no terminal.

Printed are, as they come:
    for people, where standard output is a terminal;
    JSON lines, one object an input with its `index`, where it is none, with `--out FILE`, and with `--json` of a file or standard input;
    one JSON object with `--json` of what was typed: the answer; of several texts, {"predictions": [answers]}.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from flows.commands.common import emit, json_option

if TYPE_CHECKING:
    from rich.console import RenderableType

Answer = Mapping[str, Any]  # with `index`, and what the verb says

STDIN = "-"
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked of a verb: texts, or a file of them; both empty: standard input."""

    checkpoint: str
    texts: tuple[str, ...] = ()
    file: str | None = None
    jsonl: bool = False
    out: str | None = None
    as_json: bool = False


def verb_options(name: str = "text", told: str = "A text.", *, positional: bool = True) -> Callable[[Callable[..., None]], Any]:
    """The argument CHECKPOINT and the options of every verb; the function gets `asked`, and its own options as they are.

    Args:
        name: of the field that a line of a plain file is, and of the option that gives one.
        told: the option's help.
        positional: whether such texts may also follow the checkpoint without an option.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(
            checkpoint: str,
            texts: tuple[str, ...],
            file: str | None,
            jsonl: bool,
            out: str | None,
            as_json: bool,
            more: tuple[str, ...] = (),
            **own: Any,
        ) -> None:
            asked = Asked(checkpoint=checkpoint, texts=(*more, *texts), file=file, jsonl=jsonl, out=out, as_json=as_json)
            function(asked=asked, **own)

        found: Callable[..., None] = json_option(command)
        found = click.option("--out", metavar="FILE", help="Write the answers to this file, as JSON lines.")(found)
        found = click.option(
            "--jsonl", is_flag=True, help="The lines are JSON objects, as they are where FILE ends in .jsonl."
        )(found)
        found = click.option("--file", metavar="FILE", help=f"A {name} a line; - is standard input.")(found)
        found = click.option(f"--{name}", "texts", multiple=True, metavar="TEXT", help=f"{told} May be repeated.")(found)
        if positional:
            found = click.argument("more", nargs=-1, metavar=f"[{name.upper()}]...")(found)
        return click.argument("checkpoint")(found)

    return decorate


def ask(
    verb: str,
    asked: Asked,
    options: Mapping[str, Any],
    show: Callable[[Answer], RenderableType],
    *,
    field: str = "text",
    fields: Mapping[str, Any] | None = None,
    gather: Callable[[Sequence[Answer]], Mapping[str, Any]] | None = None,
) -> None:
    """Ask the verb all that the user asked, and print what it answers.

    Args:
        options: the verb's own.
        show: an answer as a person reads it.
        field: as `verb_options` names it.
        fields: that every request has beside it.
        gather: the object of `--json` of what was typed; by default the only answer, or {"predictions": [answers]}.
    """
    from flows.graph.tools import run_verb

    with contextlib.ExitStack() as stack:
        values = {**options, "common": dict(fields or {}), **stack.enter_context(requested(asked, field))}
        answers: list[Answer] = []
        lines = asked.out is not None or ("file" in values if asked.as_json else not sys.stdout.isatty())
        receive: Callable[[Sequence[Answer]], object]
        if lines:
            receive = functools.partial(_write, stack.enter_context(_output(asked)))
        elif asked.as_json:
            receive = answers.extend
        else:
            receive = functools.partial(_show, show)
        try:
            summary = run_verb(verb, values, asked.checkpoint, receive)
        except KeyboardInterrupt:  # there is nothing to go on with
            click.get_current_context().exit(1)
    if asked.out is not None and asked.as_json:
        emit({"out": asked.out, **summary})
    elif asked.out is not None:
        click.echo(f"{summary['answered']:,} answers in {asked.out}", err=True)
    elif asked.as_json and not lines:
        emit((gather or _gathered)(answers))


@contextlib.contextmanager
def requested(asked: Asked, field: str) -> Iterator[dict[str, Any]]:
    """Where the verb finds its requests, as its config says it."""
    from pipeline.core import storage

    if asked.texts and asked.file is not None:
        raise click.UsageError(
            f"--file ({asked.file}) and {len(asked.texts)} on the command line exclude each other; leave one out"
        )
    if asked.texts and asked.texts != (STDIN,):
        if STDIN in asked.texts:
            raise click.UsageError("- (standard input) stands among texts; give it alone")
        yield {"requests": [{field: text} for text in asked.texts]}
    elif asked.file is not None and asked.file != STDIN:
        yield {"file": storage.absolute(asked.file), "called": asked.file, "jsonl": asked.jsonl or _is_jsonl(asked.file)}
    elif not asked.texts and asked.file is None and sys.stdin.isatty():
        raise click.UsageError(f"there is no {field} to answer; give one, --file FILE, or - for standard input")
    else:
        with _piped() as path:
            yield {"file": path, "called": "standard input", "jsonl": asked.jsonl}


def _is_jsonl(path: str) -> bool:
    return path.lower().endswith((".jsonl", ".ndjson"))


@contextlib.contextmanager
def _piped() -> Iterator[str]:
    """A pipe with a name, through which standard input reaches the worker, which has none: it lives in a session of its own."""
    source = sys.stdin.fileno()

    def pump() -> None:
        # by descriptors: Python's own files cannot be left by a thread that still reads when the process ends
        with contextlib.suppress(BrokenPipeError, FileNotFoundError):
            target = os.open(path, os.O_WRONLY)
            try:
                while chunk := os.read(source, _CHUNK):
                    while chunk:
                        chunk = chunk[os.write(target, chunk) :]
            finally:
                os.close(target)

    with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
        path = os.path.join(directory, "stdin")
        os.mkfifo(path, 0o600)
        threading.Thread(target=pump, daemon=True).start()
        yield path


@contextlib.contextmanager
def _output(asked: Asked) -> Iterator[IO[str]]:
    if asked.out is None:
        yield sys.stdout
        return
    if asked.file is not None and os.path.realpath(asked.file) == os.path.realpath(asked.out):
        raise click.UsageError(f"--out ({asked.out}) is the file that is read; name another one")
    with open(asked.out, "w", encoding="utf-8") as handle:
        yield handle


def _write(target: IO[str], answers: Sequence[Answer]) -> None:
    target.writelines(json.dumps(answer) + "\n" for answer in answers)
    target.flush()


def _show(show: Callable[[Answer], RenderableType], answers: Sequence[Answer]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for answer in answers:
        console.print(show(answer))


def _gathered(answers: Sequence[Answer]) -> Mapping[str, Any]:
    return answers[0] if len(answers) == 1 else {"predictions": list(answers)}
