"""Inference commands: how they read inputs and print predictions.

`cloze.model.use.verb` explains how to add a command. Inputs are the texts on the command line, the
lines of `--file` (JSON objects if its name ends in .jsonl), or standard input: for `-`, or without
any input if standard input is not a terminal.

Predictions are printed as they arrive:

    formatted, on a terminal
    as JSON lines, one object per input with its `index`: to other outputs, with `--out FILE`, and
        with `--json` and a file or standard input
    as one JSON object, the prediction or {"predictions": [...]}: with `--json` and texts on the
        command line
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

from cloze.flows.commands.base.options import (
    JSON_HELP,
    GroupedCommand,
    GroupedOption,
    OptionOverride,
    emit,
)
from cloze.flows.commands.base.placement import Place

if TYPE_CHECKING:
    from rich.console import RenderableType

Answer = Mapping[str, Any]  # `index`, and the fields of the command

STDIN = "-"
_CHUNK = 1 << 16
OF_CONFIG = "config__"  # prefix of the Python parameter names
# set by `ask`, not by options
OF_REQUESTS = ("requests", "file", "called", "jsonl", "common", "npy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Inputs of an inference command: texts, a file, or (with neither) standard input."""

    checkpoint: str
    texts: tuple[str, ...] = ()
    file: str | None = None
    jsonl: bool = False
    out: str | None = None
    as_json: bool = False


class InferenceCommand(GroupedCommand):
    """Command on a checkpoint.

    Its function takes `request`, `options` (config values of the stage, for `ask`), and the options
    that it declares itself.

    Args:
        stage: inference stage; default: named like the command.
        text: help text of the input option.
        field: name of the input option, and of the field that a line of a plain file contains.
        show: renders a prediction for people.
        gather: makes the `--json` object for texts on the command line; default: the only
            prediction, or {"predictions": [...]}.
    """

    def __init__(
        self,
        name: str,
        *,
        show: Callable[[Answer], RenderableType],
        stage: str | None = None,
        text: str = "Input text.",
        field: str = "text",
        gather: Callable[[Sequence[Answer]], Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("callback", self.ask)
        super().__init__(name, **settings)
        self.stage, self.show, self.field, self.gather = (
            stage or name,
            show,
            field,
            gather or _gathered,
        )
        self.params += [
            click.Argument(["checkpoint"]),
            click.Argument(["more"], nargs=-1, metavar=f"[{field.upper()}]..."),
            GroupedOption(
                [f"--{field}", "texts"], multiple=True, metavar="TEXT", help=f"{text} Repeatable."
            ),
            GroupedOption(
                ["--file"],
                metavar="FILE",
                help=f"File with one {field} per line; - is standard input.",
            ),
            GroupedOption(
                ["--jsonl"],
                is_flag=True,
                help="Read each line as a JSON object, as for a FILE that ends in .jsonl.",
            ),
            GroupedOption(
                ["-o", "--out", "out"], metavar="FILE", help="File for the answers, as JSON lines."
            ),
            GroupedOption(["--json", "as_json"], is_flag=True, help=JSON_HELP),
        ]
        self._complete = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._complete:
            from cloze.flows.commands.base.field_options import field_options
            from cloze.flows.graph import stages

            self._complete = True
            config = stages.stage(self.stage).config
            own = [name for name in config.model_fields if name not in OF_REQUESTS]
            places = {name: Place("Options", True) for name in own}
            spelled = {"words": OptionOverride("--pretokenized")}
            self.params += field_options(config, OF_CONFIG, places, spelled, own.__contains__)
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        values = ctx.params
        given = {
            name: values.pop(name) for name in ("checkpoint", "file", "jsonl", "out", "as_json")
        }
        request = Request(texts=(*values.pop("more"), *values.pop("texts")), **given)
        config = {name: values.pop(name) for name in list(values) if name.startswith(OF_CONFIG)}
        options = {
            name.removeprefix(OF_CONFIG): value
            for name, value in config.items()
            if value is not None
        }
        ctx.params = {"request": request, "options": options, **values}
        return super().invoke(ctx)

    def ask(
        self, request: Request, options: Mapping[str, Any], fields: Mapping[str, Any] | None = None
    ) -> None:
        """Send the request to the stage and print its predictions.

        Args:
            request: the inputs.
            options: config values of the stage.
            fields: fields of every input.
        """
        from cloze.flows.graph.command import run_verb

        with contextlib.ExitStack() as stack:
            values = {
                **options,
                "common": dict(fields or {}),
                **stack.enter_context(requested(request, self.field)),
            }
            answers: list[Answer] = []
            lines = request.out is not None or (
                "file" in values if request.as_json else not sys.stdout.isatty()
            )
            receive: Callable[[Sequence[Answer]], object]
            if lines:
                receive = functools.partial(_write, stack.enter_context(_output(request)))
            elif request.as_json:
                receive = answers.extend
            else:
                receive = functools.partial(_show, self.show)
            try:
                summary = run_verb(self.stage, values, request.checkpoint, receive)
            except KeyboardInterrupt:  # inference cannot be resumed
                click.get_current_context().exit(1)
        if request.out is not None and request.as_json:
            emit({"out": request.out, **summary})
        elif request.out is not None:
            click.echo(f"{summary['answered']:,} answers in {request.out}", err=True)
        elif request.as_json and not lines:
            emit(self.gather(answers))


@contextlib.contextmanager
def requested(request: Request, field: str) -> Iterator[dict[str, Any]]:
    """Yield the config values that name the inputs."""
    from cloze.core import storage

    if request.texts and request.file is not None:
        raise click.UsageError(
            f"--file ({request.file}) and {len(request.texts)} on the command line exclude each"
            " other; leave one out"
        )
    if request.texts and request.texts != (STDIN,):
        if STDIN in request.texts:
            raise click.UsageError("- (standard input) stands among texts; give it alone")
        yield {"requests": [{field: text} for text in request.texts]}
    elif request.file is not None and request.file != STDIN:
        yield {
            "file": storage.absolute(request.file),
            "called": request.file,
            "jsonl": request.jsonl or _is_jsonl(request.file),
        }
    elif not request.texts and request.file is None and sys.stdin.isatty():
        raise click.UsageError(
            f"there is no {field}; give one, --file FILE, or - for standard input"
        )
    else:
        with _piped() as path:
            yield {"file": path, "called": "standard input", "jsonl": request.jsonl}


def _is_jsonl(path: str) -> bool:
    return path.lower().endswith((".jsonl", ".ndjson"))


@contextlib.contextmanager
def _piped() -> Iterator[str]:
    """Yield a named pipe that forwards standard input to the worker process, which has none."""
    source = sys.stdin.fileno()

    def pump() -> None:
        # descriptors, because a thread that reads a Python file blocks the process's exit
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
def _output(request: Request) -> Iterator[IO[str]]:
    if request.out is None:
        yield sys.stdout
        return
    if request.file is not None and os.path.realpath(request.file) == os.path.realpath(request.out):
        raise click.UsageError(f"--out ({request.out}) is the file that is read; name another one")
    with open(request.out, "w", encoding="utf-8") as handle:
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
