"""The `cloze` command: a table of lazily loaded commands, and the handling of errors.

A command is a function in `flows/commands/` and one line in the table below. This module imports
nothing heavy: `cloze --help` must answer at once. Errors become one sentence and an exit code.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import signal
import stat
import sys
import time
import traceback
from typing import Any, NoReturn

import click

from cloze.core import accounts, errors
from cloze.core.errors import ClozeError, describe_missing_package, describe_os_error, did_you_mean
from cloze.core.plugins import Installed, Table, installed
from cloze.flows.commands.base.options import emit
from cloze.flows.graph.stages import TABLE

# Heading of `cloze --help` -> command -> its help line of at most 58 characters.
COMMANDS: dict[str, dict[str, str]] = {
    "Run pipelines": {
        "run": "Run all stages of a config or preset; reuse finished ones.",
        "plan": "Show which stages would run, why, and at what cost.",
        "status": "List all runs, or show the progress of one run.",
        "logs": "Show the logs of a run, node, stage or artifact.",
        "cancel": "Stop a run or a stage; trainings save a checkpoint.",
        "resume": "Continue an interrupted or failed run or training.",
    },
    "Prepare data": {
        "corpus": "Clean, filter and deduplicate raw text into a corpus.",
        "explain": "Show why a document was kept or dropped, by step.",
        "vocab": "Train or import a tokenizer vocabulary.",
        "compare-vocab": "Compare tokenizers on held-out text.",
        "dataset": "Tokenize, pack and mask a corpus into Arrow shards.",
        "inspect": "Show one row of a dataset as text, with its mask.",
    },
    "Train models": {
        "pretrain": "Pretrain an encoder on one or more datasets.",
        "merge": "Average the last checkpoints of a pretraining.",
        "finetune": "Fine-tune a pretrained encoder on a task.",
        "import": "Convert a Hugging Face model into a checkpoint.",
        "export": "Convert a checkpoint into a Hugging Face model.",
    },
    "Evaluate models": {
        "evaluate": "Score a fine-tuned checkpoint on labelled data.",
        "perplexity": "Compute a checkpoint's loss on held-out rows.",
        "likelihood": "Compute a checkpoint's bits per byte of held-out texts.",
        "score-pairs": "Score minimal pairs, such as those of BLiMP.",
        "nightly": "Evaluate new checkpoints against the champion.",
        "champion": "Show the champion and its history, or roll it back.",
        "fill-mask": "Predict the [MASK] tokens of a text.",
    },
    "Operate": {
        "ui": "Start Prefect, MLflow and the dashboard.",
        "deploy": "Register the deployments and schedules in Prefect.",
        "doctor": "Check this machine and its servers; --fix repairs.",
        "clean": "Show all artifacts by size; remove what nothing needs.",
        "verify": "Compare artifacts byte by byte with their manifests.",
        "lineage": "Show what an artifact was made from.",
        "help": "Show help on a command, option or topic.",
    },
}
# Modules of `cloze.flows.commands` with several commands; another command has its own module.
MODULES = {
    "run": "run plan",
    "run_control": "status logs cancel resume",
    "nightly": "nightly champion",
    "data_stages": "corpus explain vocab compare-vocab dataset inspect",
    "model_stages": "pretrain merge finetune evaluate perplexity likelihood score-pairs fill-mask",
    "hub": "import export",
    "services": "ui deploy doctor verify lineage",
    "help_topics": "help",
}
HIDDEN = ("report",)  # a stage that reads all nodes of a run; hidden from the help
RENAMED = ("score",)  # stages whose command has another name
# Commands that are options of others now, and how one writes them; the old names go with 0.2.
MOVED = {
    "dashboard": "ui --dashboard-only",
    "push": "export DIRECTORY --push ORG/NAME",
    "completion": "help completion SHELL",
}


def _modules() -> dict[str, str]:
    shared = {name: module for module, names in MODULES.items() for name in names.split()}
    own = [name for rows in COMMANDS.values() for name in rows]
    return {
        name: f"cloze.flows.commands.{shared.get(name, name.replace('-', '_'))}" for name in own
    }


ROWS: Table[Any] = Table("commands", "command", _modules())


def command_names() -> list[str]:
    """Return the names of the commands in the table, and of the stages that have no other."""
    unnamed = [name for name in TABLE if name not in ROWS and name not in (*hidden(), *RENAMED)]
    return [*ROWS, *unnamed]


def hidden() -> list[str]:
    """Return the stages whose command is not listed."""
    return [*HIDDEN, *(name for name in TABLE.owners if not TABLE.row(name).command)]


def help_lines() -> dict[str, str]:
    """Return the help lines of all commands, those of plug-ins included."""
    own = {name: line for rows in COMMANDS.values() for name, line in rows.items()}
    stages = {name: f"Build the artifact of stage {name}." for name in command_names()}
    return {**stages, **own, **{name: ROWS.row(name).help for name in ROWS.owners}}


def verbs(plugin: Installed) -> dict[str, str]:
    """Return the commands of a plug-in with their help lines."""
    owners = {**TABLE.owners, **ROWS.owners}
    return {name: line for name, line in help_lines().items() if owners.get(name) is plugin}


def _load(name: str) -> click.Command:
    """Import the command; one that only a stage declares has the stage's options."""
    if name not in ROWS:
        from cloze.flows.commands.base.stage_command import StageCommand

        return StageCommand(name, stage=name)
    found = ROWS.find(name)
    if isinstance(found, click.Command):
        return found
    members = vars(found).values()
    commands = (member for member in members if isinstance(member, click.Command))
    return next(command for command in commands if command.name == name)


class CommandGroup(click.Group):
    """Click group that imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return command_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in (*command_names(), *hidden()):
            return _load(cmd_name)
        named = (plugin for plugin in installed() if plugin.plugin.name == cmd_name)
        return next(map(PluginGroup, named), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        commands = self.list_commands(ctx)
        if args and args[0] in MOVED:
            message = f"`cloze {args[0]}` is going, use `cloze {MOVED[args[0]]}`"
            click.echo(f"cloze: {message}", err=True)
            args = _in_new_form(*args)
        command = self.get_command(ctx, args[0]) if args else None
        if args and command is None:
            hint = did_you_mean(args[0], commands, otherwise="see `cloze --help`")
            raise click.UsageError(f"No such command {args[0]!r}; {hint}")
        _check_words(args, takes_texts=getattr(command, "takes_texts", False))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from cloze.flows.commands.help_topics import TOPICS

        table = {group: list(rows.items()) for group, rows in COMMANDS.items()}
        table["Plug-ins (`cloze NAME --help`)"] = [
            (plugin.plugin.name, ", ".join(verbs(plugin)) or plugin.plugin.summary)
            for plugin in installed()
        ]
        table["Help topics"] = [("help TOPIC", ", ".join(TOPICS))]
        for group, rows in table.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


def _in_new_form(name: str, *rest: str) -> list[str]:
    """Return the arguments of a command of `MOVED` as the command of today takes them."""
    words = [place for place, word in enumerate(rest) if not word.startswith("-")]
    if name == "push" and len(words) > 1:  # DIRECTORY REPOSITORY
        return ["export", *rest[: words[1]], "--push", *rest[words[1] :]]
    if name == "dashboard":
        ports = (re.sub("^--port(?==|$)", "--dashboard-port", word) for word in rest)
        return ["ui", "--dashboard-only", *ports]
    return [*({"push": ["export"]}.get(name) or ["help", name]), *rest]


class PluginGroup(click.Group):
    """What `cloze NAME --help` shows of a plug-in: its commands, which also stand alone."""

    def __init__(self, plugin: Installed) -> None:
        self._plugin, self._verbs = plugin, verbs(plugin)
        super().__init__(plugin.plugin.name, help=plugin.plugin.summary)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in self._verbs else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        kinds = [(kind, ", ".join(rows)) for kind, rows in self._plugin.plugin.rows.items()]
        for heading, rows in (
            ("Commands, also without this name before them", list(self._verbs.items())),
            ("Rows by table", [row for row in kinds if row[0] != "commands"]),
        ):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Print the reasons of decisions, full paths.")
@click.option("--debug", is_flag=True, help="Print tracebacks.")
@click.version_option(package_name="cloze-pretraining-base")
def cloze(quiet: bool, verbose: bool, debug: bool) -> None:
    """Pretrain, fine-tune and evaluate BERT-family encoders from raw text."""
    del debug  # `main` reads it
    accounts.share(os.path.expanduser(os.environ.get("CLOZE_RUNS_DIR") or "runs"))
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other; give one of them")


# Another path helps, where a full disk or a fault of it would need something else.
WRONG_PLACE = (
    errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
    errno.EPERM,
)  # fmt: skip
GLOBAL_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--debug")  # before or after the command


def _flags_first(arguments: list[str]) -> list[str]:
    """Move the global flags before the command; after `--`, arguments keep their place."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags = [argument for argument in arguments[:end] if argument in GLOBAL_FLAGS]
    remaining = [argument for argument in arguments[:end] if argument not in GLOBAL_FLAGS]
    return [*flags, *remaining, *arguments[end:]]


def _misplaced(error: click.NoSuchOption, arguments: list[str]) -> str:
    """Return what to type if the option is there, on the other side of the command; else empty."""
    name, context = error.option_name, error.ctx
    command = next((word for word in arguments if word in command_names()), None)
    if context is None or command is None:
        return ""
    if context.command is not cloze:
        names = [name for option in cloze.params for name in option.opts]
        return f"{name} stands before the command: `cloze {name}`" if name in names else ""
    found = cloze.get_command(context, command)
    options = found.get_params(context) if found else ()
    if not any(name in option.opts for option in options):
        return ""
    return f"{name} is an option of {command}; write it after the command: `cloze {command} {name}`"


def _check_words(words: list[str], *, takes_texts: bool) -> None:
    """Refuse what a shell leaves of an unset variable, and bytes that no record can hold."""
    for before, word in zip(["cloze", *words], words, strict=False):
        name, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if not value and word != name and not takes_texts:
            message = f"the value after {name} is empty, as of an unset variable; give one, or none"
            raise click.UsageError(message)
        if not word.isascii() and any("\ud800" <= letter < "\ue000" for letter in word):
            printable = os.fsencode(word).decode("utf-8", "backslashreplace")
            raise click.UsageError(f"{printable} is not in UTF-8; rename it, or use a link to it")


def _interrupt(number: int, _: object) -> NoReturn:
    """Stop, but only once, for trainings save now. A second Ctrl-C ends everything at once."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGINT, functools.partial(_end_at_once, time.monotonic()))
    if number == signal.SIGHUP:  # output to the closed terminal would be an error
        with contextlib.suppress(OSError), open(os.devnull, "wb") as null:
            for stream in (1, 2):
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(null.fileno(), stream)
    elif os.isatty(2):
        os.write(2, b"\nstopping, trainings save a checkpoint; Ctrl-C again ends at once\n")
    raise KeyboardInterrupt


def _end_at_once(asked: float, *_: object) -> None:
    if time.monotonic() - asked < errors.ECHO_SECONDS:
        return
    shown = b"\033[?25h" if os.isatty(2) else b""  # the cursor
    os.write(2, b"\n%bcloze: ended at once; run the same command again to continue\n" % shown)
    os._exit(1)  # the kernel ends the ranks


def _open_streams() -> None:
    """Let nothing that is printed be an error, as in a terminal of another encoding.

    A file that is opened while a stream is closed would get its number, and others' output with it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
        elif number and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code; `cloze help exit-codes` lists them."""

    _open_streams()
    arguments = _flags_first(sys.argv[1:] if arguments is None else arguments)
    # which shells leave to programs: --out=~/x, --source text=~/x, --set finetune.data=~/x
    home = os.path.expanduser("~/")
    arguments = [re.sub(r"^([\w.@-]+=)~/", rf"\g<1>{home}", word) for word in arguments]
    fail = functools.partial(_fail, debug="--debug" in arguments, as_json="--json" in arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as below nohup
            signal.signal(number, _interrupt)
    try:
        # the argument of `ctx.exit`, else None
        code = cloze.main(arguments, prog_name="cloze", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:  # `cloze` alone
        sys.stdout.write(f"{error.format_message()}\n")
        return 0
    except click.ClickException as error:
        message, context = error.format_message(), getattr(error, "ctx", None)
        if message.startswith(("Missing", "Got unexpected")) and context is not None:
            message = f"{message.rstrip('.')}; see `{context.command_path} --help`"
        elif isinstance(error, click.NoSuchOption):
            message = _misplaced(error, arguments) or message
        return fail(error, message, error.exit_code if error.exit_code != 1 else 2)
    except (KeyboardInterrupt, click.Abort) as error:
        return fail(error, "interrupted; run the same command again to continue", 1)
    except BrokenPipeError:
        return 1
    except ClozeError as error:
        return fail(error, str(error), error.exit_code)
    except OSError as error:
        is_wrong_place = bool(error.filename) and error.errno in WRONG_PLACE
        code = 2 if is_wrong_place else 1
        return fail(error, describe_os_error(error, "input or output"), code)
    except ModuleNotFoundError as error:
        return fail(error, describe_missing_package(error), 2)
    except Exception as error:
        hint = "internal error; run again with --debug and report the traceback"
        return fail(error, f"{type(error).__name__}: {error} ({hint})", 1)


def _fail(error: BaseException, message: str, code: int, *, debug: bool, as_json: bool) -> int:
    from cloze.core.humanize import printable
    from cloze.core.secrets import redact

    if debug:
        sys.stderr.write(redact(traceback.format_exc()))
    message = redact(" ".join(printable(message).split()))  # of a URL with a password, say
    sys.stderr.write(f"cloze: {message}\n")
    if as_json:
        emit({"error": {"type": type(error).__name__, "message": message, "exit_code": code}})
    return code


def entry() -> NoReturn:
    sys.exit(main())
