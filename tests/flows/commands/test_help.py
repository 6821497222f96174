"""Help: one sentence per command, groups and levels of options, texts that keep the rules, topics,
completion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from pydantic import BaseModel

from cloze.core.options import field_docs
from cloze.core.plugins import Installed, installed
from cloze.core.stages.execution import Execution
from cloze.flows import cli
from cloze.flows.commands.base.options import OTHER, STAGES, placements
from cloze.flows.commands.base.stage_command import StageCommand
from cloze.flows.commands.help_topics import TOPICS
from cloze.flows.graph import stages
from cloze.flows.nightly.suite import NightSettings
from cloze.labs.kubernetes.manifest import Options
from cloze.model.families.registry import FAMILIES, config_class
from cloze.model.tasks.table import KINDS

FIRST_WORDS = re.compile(r"(What|Whether|Of|The same|With which|How|Which|Where)\b")
FORBIDDEN = re.compile(
    r"without it\b|None:|so many|beside|RECIPES|RULES|TRAINERS|\b(pipeline|model)\.\w|by default"
)
SEVERAL_MEANINGS = {  # option names with other values elsewhere
    "--from": "node to rerun from, or checkpoint to adapt",
    "--mixture-by": "source or language, rows or tokens",
    "--kind": "of a filter, or of a tokenizer",
    "--pooling": "pooler only for embeddings",
    "--precision": "fp16 only in pretraining",
    "--split": "of a dataset, or of a task",
    "--dataset": "several in pretraining",
    "--checkpoint": "several in evaluations",
    "--normalize": "of scores, or of vectors",
}


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    root = click.Context(cli.cloze, info_name="cloze")
    for name in cli.command_names():
        command = cli.cloze.get_command(root, name)
        assert command is not None
        yield name, command, click.Context(command, info_name=name, parent=root)


def options() -> Iterator[tuple[str, Any]]:
    for name, command, context in commands():
        yield from (
            (name, one) for one in command.get_params(context) if isinstance(one, click.Option)
        )


def texts() -> Iterator[tuple[str, str]]:
    """Every help text of an option, and every description of a config field."""
    yield from (
        (f"{name} {option.opts[0]}", option.help or "")
        for name, option in options()
        if not option.is_eager
    )
    models: list[type[BaseModel]] = [
        stages.stage(name).config for name in {**stages.TABLE, **stages.TOOLS}
    ]
    models += [
        Execution,
        NightSettings,
        Options,
        *map(config_class, FAMILIES),
        *(kind.options for kind in KINDS.values()),
    ]
    for model in dict.fromkeys(models):
        yield from (
            (f"{model.__name__}.{name}", " ".join(text.split()))
            for name, text in field_docs(model).items()
        )


def test_every_help_text_is_a_short_complete_sentence() -> None:
    bad = [
        (name, text)
        for name, text in texts()
        if not text
        or FIRST_WORDS.match(text)
        or FORBIDDEN.search(text)
        or len(text) > 200
        or not re.search(r"\.( \[required\])?$", text)
    ]
    assert not bad


def test_every_default_is_shown() -> None:
    hidden = [
        (name, option.opts[0], option.default)
        for name, command, context in commands()
        if not command.context_settings.get("show_default")
        for option in command.get_params(context)
        if isinstance(option, click.Option) and isinstance(option.default, int | float | str)
        if not (option.is_flag or option.default == "" or option.show_default)
        if "Default" not in (option.help or "")
    ]
    assert not hidden


def test_the_list_of_commands() -> None:
    shown = CliRunner().invoke(cli.cloze, ["--help"], terminal_width=80).output
    assert len(cli.COMMANDS) == 5
    assert sum(map(len, cli.COMMANDS.values())) <= 40
    for group, rows in cli.COMMANDS.items():
        assert f"\n{group}:\n" in shown
        for name, line in rows.items():
            assert len(line) <= 58, name
            assert line.endswith("."), name
            assert re.search(rf"\n  {name} +{re.escape(line)}\n", shown), name
    assert not any(re.search(rf"\n  {name} ", shown) for name in cli.hidden())


@pytest.mark.parametrize("plugin", installed(), ids=lambda plugin: plugin.plugin.name)
def test_a_lab_is_one_line_and_its_page_lists_its_commands(plugin: Installed) -> None:
    verbs = cli.verbs(plugin)
    shown = " ".join(CliRunner().invoke(cli.cloze, ["--help"]).output.split())
    assert f" {plugin.plugin.name} {', '.join(verbs) or plugin.plugin.summary}" in shown
    page = CliRunner().invoke(cli.cloze, [plugin.plugin.name, "--help"], terminal_width=80).output
    assert plugin.plugin.summary in " ".join(page.split())
    for name, line in verbs.items():
        assert len(line) <= 58, name
        assert line.endswith("."), name
        assert re.search(rf"\n  {name} +{re.escape(line)}\n", page), name


def test_a_command_s_help_begins_with_its_line() -> None:
    lines = cli.help_lines()
    for name, command, _ in commands():
        first = " ".join((command.help or "").split("\n\n")[0].split())
        assert first.startswith(lines[name].removesuffix(".")), name


def test_help_shows_few_options_and_help_all_shows_all() -> None:
    for name, command, context in commands():
        found = [one for one in command.get_params(context) if isinstance(one, click.Option)]
        count = sum(not one.hidden for one in found)
        few = CliRunner().invoke(cli.cloze, [name, "--help"], terminal_width=200).output
        assert len(re.findall(r"^  -", few, re.M)) <= 32, name
        if isinstance(command, StageCommand):
            everything = (
                CliRunner().invoke(cli.cloze, [name, "--help-all"], terminal_width=200).output
            )
            assert len(re.findall(r"^  -", everything, re.M)) == count, name
            hidden = len(re.findall(r"^  -", few, re.M)) < count
            assert (f"{count} options in all: --help-all" in few) == hidden, name


@pytest.mark.parametrize("wanted", ["optimizer", "Learning-rate schedule", "weight-decay"])
def test_help_of_a_group_or_a_word(wanted: str) -> None:
    shown = (
        CliRunner()
        .invoke(cli.cloze, ["pretrain", f"--help-all={wanted}"], terminal_width=200)
        .output
    )
    assert wanted.lower() in shown.lower()
    assert "--weight-decay" in shown or wanted == "Learning-rate schedule"
    assert "--hostfile" not in shown
    assert "in all: --help-all" in shown


@pytest.mark.parametrize("name", ["corpus", "pretrain", "finetune"])
def test_a_stage_has_few_options_and_the_help_says_how_to_set_the_others(name: str) -> None:
    shown = CliRunner().invoke(cli.cloze, [name, "--help-all"], terminal_width=200).output
    assert len(re.findall(r"^  -", shown, re.M)) <= 50
    rare = {one.set_key: one for verb, one in options() if verb == name and one.hidden}
    assert f"{len(rare)} settings that few need have no option" in " ".join(shown.split())
    stage = stages.stage(name)
    for key, option in rare.items():
        assert key.removeprefix("run.") in (
            Execution.model_fields if key.startswith("run.") else stage.config.model_fields
        )
        found = CliRunner().invoke(cli.cloze, ["help", name, option.opts[0]]).output
        assert not re.search(rf"^  {option.opts[0]}\b", found, re.M)
        word = CliRunner().invoke(cli.cloze, [name, f"--help-all={key}"], terminal_width=200)
        assert re.search(rf"^  --set {key}=\S+\s+\w", word.output, re.M), word.output


def test_every_option_of_a_stage_has_a_group() -> None:
    for name, command, context in commands():
        others = [
            one.opts for one in command.get_params(context) if getattr(one, "group", "") == OTHER
        ]
        assert not others, (name, "add the fields to flows/commands/base/headings.txt")


def test_the_groups_name_fields_that_exist() -> None:
    for name in {row.partition("/")[0] for row in STAGES}:
        fields = stages.stage(name).config.model_fields.keys() | Execution.model_fields.keys()
        assert placements(name).keys() <= fields, name


def test_a_repeatable_option_says_so() -> None:
    for name, option in options():
        if option.multiple:
            text = " ".join((option.help or "").split()).split(" Default:")[0]
            assert text.endswith("Repeatable."), (name, option.opts)


def test_an_option_takes_the_same_values_everywhere() -> None:
    known: dict[str, tuple[object, str]] = {}
    for name, option in options():
        choices: object = tuple(getattr(option.type, "choices", ()))
        choices = choices or getattr(option.type, "reference", "")
        kind = (option.type.name, choices, option.nargs, option.multiple)
        before, where = known.setdefault(option.opts[-1], (kind, name))
        assert option.opts[-1] in SEVERAL_MEANINGS or before == kind, (option.opts, where, name)


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(topic: str) -> None:
    shown = CliRunner().invoke(cli.cloze, ["help", topic])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) >= 4
    assert max(map(len, shown.output.splitlines())) <= 120


def test_help_of_a_command_is_all_of_it() -> None:
    assert "--weight-decay" in CliRunner().invoke(cli.cloze, ["help", "pretrain"]).output
    assert cli.main(["help", "pretrian"]) == 2


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        ([], "pre", "pretrain"),
        (["pretrain", "--optimizer"], "", "muon"),
        (["pretrain", "--model"], "bert-b", "bert-base"),
        (["finetune", "--task"], "ss", "sst2"),
        (["dataset", "--recipe"], "rob", "roberta-doc"),
        (["run"], "gl", "glue"),
        (["help"], "exit", "exit-codes"),
        (["pretrain"], "--weight", "--weight-decay"),
    ],
)
def test_values_are_completed(arguments: list[str], incomplete: str, expected: str) -> None:
    completion = ShellComplete(cli.cloze, {}, "cloze", "_CLOZE_COMPLETE")
    assert expected in [item.value for item in completion.get_completions(arguments, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_CLOZE_COMPLETE" in CliRunner().invoke(cli.cloze, ["help", "completion", shell]).output


def test_every_command_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command, context in commands():
        assert any("--json" in one.opts for one in command.get_params(context)), name
    assert cli.main(["help", "exit-codes", "--json"]) == 0
    assert "4  stopped" in json.loads(capsys.readouterr().out)["help"]
