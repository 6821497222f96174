"""The `cloze` command. Verbs live in `flows/commands/`, one file each or one for a few of a kind.

Nothing heavy is imported here: `cloze --help` must answer at once. Errors become one sentence and an exit code.
"""

from __future__ import annotations

import importlib
import json
import keyword
import signal
import sys
import traceback
from typing import Any, NoReturn

import click

from pipeline.core.errors import ClozeError, did_you_mean

COMMANDS = {
    "run": "run",
    "plan": "run",
    "status": "inspect",
    "logs": "inspect",
    "verify": "inspect",
    "lineage": "inspect",
    "doctor": "doctor",
    "corpus": "corpus",
    "vocab": "vocab",
    "dataset": "dataset",
    "pretrain": "train",
    "resume": "train",
    "finetune": "train",
    "evaluate": "train",
    "export": "checkpoint",
    "import": "checkpoint",
    "fill-mask": "checkpoint",
    "fetch": "fetch",
    "ui": "ui",
}


class Verbs(click.Group):
    """Imports a verb's module when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"flows.commands.{COMMANDS[cmd_name]}")
        name = cmd_name.replace("-", "_") + "_" * keyword.iskeyword(cmd_name)  # a function cannot be called `import`
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            hint = did_you_mean(args[0], COMMANDS, otherwise="see `cloze --help`")
            raise click.UsageError(f"unknown verb {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="cloze")
def cloze(debug: bool) -> None:
    """Pretrain BERT-family encoders: raw text in, an evaluated encoder and a report out.

    `cloze run demo` runs the whole DAG; each stage is a verb too.
    """
    del debug  # `main` looks for it before the verbs do


def emit(value: dict[str, Any]) -> None:
    """Print the `--json` object: one line, the last of standard output."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 2 usage, 3 data, 4 stopped with a checkpoint, 1 anything else."""
    from pipeline.core.system_errors import os_sentence

    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]  # works before and after the verb
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = cloze.main(given, prog_name="cloze", standalone_mode=False)  # what `ctx.exit` was given, else None
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _fail(f"{error.format_message()}", error.exit_code if error.exit_code != 1 else 2, debug)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted; run the same command again to go on", 1, debug)
    except BrokenPipeError:
        return 1
    except ClozeError as error:
        return _fail(str(error), error.exit_code, debug)
    except OSError as error:
        return _fail(os_sentence(error, "input or output"), 1, debug)
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error} (a fault of Cloze's own; --debug shows where)", 1, debug)


def _fail(sentence: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"cloze: {' '.join(sentence.split())}\n")
    return code


def entry() -> NoReturn:
    """The console script."""
    sys.exit(main())
