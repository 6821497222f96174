"""The `cloze` command. A verb is one file in `flows/commands/` and one line in the table below.

Nothing heavy is imported here: `cloze --help` must answer at once. Errors become one sentence and an exit code.
"""

from __future__ import annotations

import signal
import sys
import traceback
from typing import NoReturn

import click

from flows.commands.stage_command import stage_command
from flows.graph.stages import TABLE
from pipeline.core.errors import ClozeError, did_you_mean
from pipeline.core.registry import load

# Verb -> `module:function`. A stage without a line here is a verb too, made from the table of stages.
COMMANDS: dict[str, str] = {
    "run": "flows.commands.run:run",
    "plan": "flows.commands.plan:plan",
    "cancel": "flows.commands.cancel:cancel",
    "status": "flows.commands.status:status",
    "nightly": "flows.commands.nightly:nightly",
    "champion": "flows.commands.champion:champion",
    "logs": "flows.commands.logs:logs",
    "verify": "flows.commands.verify:verify",
    "lineage": "flows.commands.lineage:lineage",
    "doctor": "flows.commands.doctor:doctor",
    "filter": "flows.commands.filter:filter_",
    "corpus": "flows.commands.corpus:corpus",
    "vocab": "flows.commands.vocab:vocab",
    "dataset": "flows.commands.dataset:dataset",
    "pretrain": "flows.commands.pretrain:pretrain",
    "resume": "flows.commands.resume:resume",
    "merge": "flows.commands.merge:merge",
    "finetune": "flows.commands.finetune:finetune",
    "evaluate": "flows.commands.evaluate:evaluate",
    "export": "flows.commands.export:export",
    "import": "flows.commands.import_:import_",
    "answer": "flows.commands.answer:answer",
    "classify": "flows.commands.classify:classify",
    "tag": "flows.commands.tag:tag",
    "fill-mask": "flows.commands.fill_mask:fill_mask",
    "generate": "flows.commands.generate:generate",
    "score": "flows.commands.score:score",
    "embed": "flows.commands.embed:embed",
    "fetch": "flows.commands.fetch:fetch",
    "ui": "flows.commands.ui:ui",
    "deploy": "flows.commands.deploy:deploy",
}


class Verbs(click.Group):
    """Imports a verb's module when the verb is asked for, and its stage's when its options are."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in TABLE if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command: click.Command = load(COMMANDS[cmd_name])
            return command
        return stage_command(cmd_name) if cmd_name in TABLE else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        verbs = self.list_commands(ctx)
        if args and args[0] not in verbs:
            hint = did_you_mean(args[0], verbs, otherwise="see `cloze --help`")
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
