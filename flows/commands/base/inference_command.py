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
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import click

from cloze.core import storage
from cloze.core.humanize import format_metrics
from cloze.flows.commands.base.options import (
    JSON_HELP,
    GroupedCommand,
    GroupedOption,
    OptionOverride,
    Placement,
    complete_targets,
    emit,
)
from cloze.flows.commands.base.stage_command import OF_CONFIG, pop_prefixed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloze.core.stages.stage import Reporter

Answer = Mapping[str, Any]  # `index`, and the fields of the command

STDIN = "-"
_CHUNK = 1 << 16
# config fields that `predict` sets, and that have no option
REQUEST_FIELDS = ("requests", "file", "called", "jsonl", "common")


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

    Its function takes `request`, `options` (config values of the stage, for `predict`), and the
    options that it declares itself.

    Args:
        stage: inference stage; default: named like the command.
        field: name of the input option, and of the field that a line of a plain file contains.
        target: what the first argument names.
        gather: makes the `--json` object for texts on the command line; default: the only
            prediction, or {"predictions": [...]}.
        spelled: options of config fields that have another name; None: the field has no option.
    """

    takes_texts = True  # of which one may be empty

    def __init__(
        self,
        name: str,
        *,
        show: Callable[[Answer], RenderableType],
        stage: str | None = None,
        text: str = "Input text.",
        field: str = "text",
        target: str = "checkpoint",
        gather: Callable[[Sequence[Answer]], Mapping[str, Any]] | None = None,
        spelled: Mapping[str, OptionOverride | None] | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("callback", self.predict)
        super().__init__(name, **settings)
        self.stage, self.field = stage or name, field
        self.show, self.gather, self.spelled = show, gather, spelled or {}
        self.params += [
            click.Argument(["checkpoint"], metavar=target.upper(), shell_complete=complete_targets),
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

    def all_params(self) -> list[click.Parameter]:
        from cloze.flows.commands.base.field_options import field_options
        from cloze.flows.graph import stages

        config = stages.stage(self.stage).config
        without = {*REQUEST_FIELDS, *(name for name, own in self.spelled.items() if not own)}
        fields = [name for name in config.model_fields if name not in without]
        placed = {name: Placement("Options", True) for name in fields}
        spelled = {name: own for name, own in self.spelled.items() if own}
        own = field_options(config, OF_CONFIG, placed, spelled, fields.__contains__)
        return [*self.params, *own]

    def invoke(self, ctx: click.Context) -> Any:
        from cloze.flows.graph import stages
        from cloze.flows.run.targets import resolve_path

        values = ctx.params
        request = Request(
            checkpoint=resolve_path(values.pop("checkpoint")),
            texts=(*values.pop("more"), *values.pop("texts")),
            **{name: values.pop(name) for name in ("file", "jsonl", "out", "as_json")},
        )
        options = pop_prefixed(values, OF_CONFIG)
        for name in stages.stage(self.stage).config.path_fields():
            if isinstance(options.get(name), str):
                options[name] = resolve_path(options[name])
        ctx.params = {"request": request, "options": options, **values}
        return super().invoke(ctx)

    def predict(
        self, request: Request, options: Mapping[str, Any], fields: Mapping[str, Any] | None = None
    ) -> None:
        from cloze.flows.graph.command import run_inference

        with contextlib.ExitStack() as stack:
            values = {
                **options,
                "common": dict(fields or {}),
                **stack.enter_context(input_values(request, self.field)),
            }
            answers: list[Answer] = []
            as_lines = request.out is not None or (
                "file" in values if request.as_json else not sys.stdout.isatty()
            )
            receive: Callable[[Sequence[Answer]], object]
            if as_lines:
                receive = functools.partial(_write, stack.enter_context(_output(request)))
            elif request.as_json:
                receive = answers.extend
            else:
                receive = functools.partial(_show, self.show)
            report = stack.enter_context(progress_line(self.stage, hidden=not as_lines))
            try:
                summary = run_inference(self.stage, values, request.checkpoint, receive, report)
            except KeyboardInterrupt:  # inference cannot be resumed
                click.get_current_context().exit(1)
        if request.out is not None:
            scores = f" ({format_metrics(summary['metrics'])})" if "metrics" in summary else ""
            _announce(request, summary, f"{summary['answered']:,} answers{scores}")
        elif request.as_json and not as_lines:
            is_single = len(answers) == 1
            usual = answers[0] if is_single else {"predictions": answers}
            emit(self.gather(answers) if self.gather else usual)

    def predict_into_file(
        self,
        request: Request,
        values: Mapping[str, Any],
        receive: Callable[[Sequence[Answer]], object],
        finish: Callable[[Mapping[str, Any]], str],
    ) -> None:
        """Run the stage for a file that has a format of its own, and print what it contains.

        `finish`: called with the summary; it completes the file and describes its content.
        """
        from cloze.flows.graph.command import run_inference

        with (
            input_values(replace(request, out=None), self.field) as inputs,
            progress_line(self.stage) as report,
        ):
            summary = run_inference(
                self.stage, {"common": {}, **values, **inputs}, request.checkpoint, receive, report
            )
        _announce(request, summary, finish(summary))


def _announce(request: Request, summary: Mapping[str, Any], content: str) -> None:
    """Print what a file of answers contains; with `--json` the summary."""
    from cloze.flows.views import terminal

    if request.as_json:
        emit({"out": request.out, **summary})
    else:
        note = f"{content} in {request.out}"
        terminal.console().print(note, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress_line(stage: str, hidden: bool = False) -> Iterator[Reporter]:
    """Yield a reporter that shows progress on standard error, if both outputs are no terminal.

    `hidden`: show nothing: the terminal gets the predictions.
    """
    from cloze.core.stages.stage import NULL_REPORTER
    from cloze.flows.views import terminal
    from cloze.flows.views.live import StageDisplay

    screen = terminal.console()
    if hidden or screen.quiet or not screen.is_terminal or sys.stdout.isatty():
        yield NULL_REPORTER
        return
    with StageDisplay(stage, screen) as display:
        yield display


@contextlib.contextmanager
def input_values(request: Request, field: str) -> Iterator[dict[str, Any]]:
    """Yield the config values that name the inputs."""

    if request.texts and request.file is not None:
        raise click.UsageError(
            f"--file ({request.file}) excludes texts on the command line ({len(request.texts)});"
            " leave one out"
        )
    if request.texts and request.texts != (STDIN,):
        if STDIN in request.texts:
            raise click.UsageError(
                "- (standard input) cannot be mixed with texts; give one or the other"
            )
        yield {"requests": [{field: text} for text in request.texts]}
    elif request.file is not None and request.file != STDIN:
        yield {
            "file": storage.absolute(request.file),
            "called": request.file,
            "jsonl": request.jsonl or request.file.lower().endswith((".jsonl", ".ndjson")),
        }
    elif not request.texts and request.file is None and sys.stdin.isatty():
        raise click.UsageError(
            f"no {field} to read; give one, or --file FILE, or - for standard input"
        )
    else:
        with _stdin_pipe() as path:
            yield {"file": path, "called": "standard input", "jsonl": request.jsonl}


@contextlib.contextmanager
def _stdin_pipe() -> Iterator[str]:
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
        raise click.UsageError(f"--out ({request.out}) is the input file; name another file")
    if not storage.has_scheme(request.out):
        with open(request.out, "w", encoding="utf-8") as handle:
            yield handle
        return
    with storage.atomic_output(request.out) as remote:
        text = io.TextIOWrapper(remote, encoding="utf-8")
        yield text
        text.flush()


def _write(target: IO[str], answers: Sequence[Answer]) -> None:
    target.writelines(json.dumps(answer) + "\n" for answer in answers)
    target.flush()


def _show(show: Callable[[Answer], RenderableType], answers: Sequence[Answer]) -> None:
    from cloze.flows.views import terminal

    out = terminal.output()
    for answer in answers:
        out.print(show(answer), markup=False)
