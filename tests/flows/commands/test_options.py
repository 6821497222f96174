"""Options are made from config classes: for every stage that there is, and for a new one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import UsageError
from cloze.core.stages.stage import StageResult
from cloze.core.stages.worker import Job
from cloze.flows import cli
from cloze.flows.commands.base.field_options import field_options
from cloze.flows.commands.base.options import OptionOverride, split_commas
from cloze.flows.commands.base.stage_command import OF_CONFIG, OF_EXECUTION, StageCommand
from cloze.flows.graph import stages
from cloze.flows.graph.config import RunConfig
from cloze.flows.launch.coordinator import LaunchCoordinator
from cloze.model.train.optimizers import OPTIMIZERS


class EveryKind(StageConfig):
    steps: int = Field(default=1000, ge=1)
    """Optimizer steps."""

    rate: float | None = Field(default=None, gt=0, lt=1)
    precision: Literal["auto", "bf16"] = "auto"
    keep: bool = False
    tf32: bool = True
    labels: tuple[str, ...] = ()
    milestones: tuple[int, ...] = ()
    grace_seconds: float | None = Field(default=None, ge=0)
    paths: tuple[InputPath, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    columns: dict[str, str] = Field(default_factory=dict)
    data: InputPath | None = None
    names: tuple[str, ...] | None = None
    nested: dict[str, int] | None = None


def options(spelled: dict[str, OptionOverride] | None = None) -> dict[str, click.Option]:
    return {str(option.name): option for option in field_options(EveryKind, "", {}, spelled or {})}


def given(*arguments: str, **spelled: OptionOverride) -> dict[str, object]:
    command = click.Command("x", params=list(options(spelled).values()))
    context = command.make_context("x", list(arguments))
    return {name: value for name, value in context.params.items() if value not in (None, ())}


def test_each_kind_of_field_is_read_as_what_it_is() -> None:
    assert given() == {}
    assert given(
        "--steps", "3", "--rate", "1e-4", "--precision", "bf16", "--keep", "--no-tf32"
    ) == {
        "steps": 3,
        "rate": 1e-4,
        "precision": "bf16",
        "keep": True,
        "tf32": False,
    }
    assert given("--label", "en", "--label", "de", "--betas", "0.9", "0.98") == {
        "labels": ("en", "de"),
        "betas": (0.9, 0.98),
    }
    assert given("--column", "text=body", "--column", "id=key", "--data", "x") == {
        "columns": {"text": "body", "id": "key"},
        "data": "x",
    }
    assert "nested" not in options()


@pytest.mark.parametrize(
    ("text", "number"),
    [("10M", 10_000_000), ("2.5k", 2500), ("300e9", 300_000_000_000), ("1_000", 1000)],
)
def test_a_count_may_be_written_short(text: str, number: int) -> None:
    assert given("--steps", text) == {"steps": number}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1m30s", 90), ("1h", 3600)]
)
def test_a_duration_may_have_a_unit(text: str, seconds: float) -> None:
    assert given("--grace-seconds", text) == {"grace_seconds": seconds}


def test_a_switch_has_a_no_only_where_it_is_on_by_default() -> None:
    assert (options()["keep"].secondary_opts, options()["tf32"].secondary_opts) == (
        [],
        ["--no-tf32"],
    )


def test_a_field_is_spelled_as_the_verb_says() -> None:
    spelled = OptionOverride("--name", lambda texts: list(split_commas(texts)))
    assert given("--name", "a,b", "--name", "c", names=spelled) == {"names": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "x>=1"),
        (["--rate", "1"], "0.0<x<1.0|0<x<1"),
        (["--precision", "fp8"], "'auto', 'bf16'"),
        (["--column", "text"], "must look like NAME=VALUE"),
        (["--steps", "many"], "'many' is not an integer"),
        (["--steps", "2.5"], "'2.5' is not an integer"),
        (["--steps", "1,2"], "'1,2' is not an integer"),
        (["--milestone", "100,200"], "repeat the option"),
    ],
)
def test_bounds_and_choices_are_those_of_the_field(arguments: list[str], told: str) -> None:
    with pytest.raises(click.UsageError) as error:
        given(*arguments)
    assert any(part in error.value.format_message() for part in told.split("|"))


def test_help_says_what_the_field_says() -> None:
    context = click.Context(click.Command("x"))
    assert options()["steps"].get_help_record(context) == (
        "--steps N",
        "Optimizer steps.  [default: 1000]",
    )
    assert options()["data"].get_help_record(context) == ("--data PATH", "")


COMMAND_OF = {
    "vectors": "embed-corpus",
    "score": "score-pairs",
    "filter": "train-filter",
    "entities": "tag-corpus",
}


@pytest.mark.parametrize("name", stages.TABLE)
def test_every_plain_field_of_a_stage_has_an_option_and_no_name_comes_twice(name: str) -> None:
    command = cli.cloze.get_command(click.Context(cli.cloze), COMMAND_OF.get(name, name))
    assert isinstance(command, StageCommand)
    parameters = command.get_params(click.Context(command))
    flags = [
        flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)
    ]
    assert len(flags) == len(set(flags))
    names = {parameter.name for parameter in parameters}
    plain = {
        field
        for field, info in stages.stage(name).config.model_fields.items()
        if info.annotation
        in (int, float, str, bool, int | None, float | None, str | None, bool | None)
    }
    assert {f"{OF_CONFIG}{field}" for field in plain} <= names
    assert any(str(found).startswith(OF_EXECUTION) for found in names) == (
        stages.stage(name).worker is not None
    )


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_help_names_the_optimizers(verb: str) -> None:
    told = " ".join(CliRunner().invoke(cli.cloze, [verb, "--help-all"]).output.split())
    assert all(name in told for name in OPTIMIZERS)


HELP = """
import json, sys
from cloze.flows.cli import main
heavy = {"torch", "deepspeed", "apache_beam", "prefect", "mlflow", "transformers", "pyarrow"}
found = {}
for words in json.loads(sys.argv[1]):
    before = heavy & set(sys.modules)
    found[" ".join(words)] = [main(words), sorted(heavy & set(sys.modules) - before)]
print(json.dumps(found))
"""


def test_help_imports_nothing_heavy() -> None:
    words = [["--help"], *([name, "--help"] for name in cli.command_names())]
    done = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(words)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {" ".join(each): [0, []] for each in words}


PLUGIN = '''
"""A stage that somebody adds: one file."""
from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import UsageError
from cloze.core.stages.stage import StageResult, Stage

class ShoutConfig(StageConfig):
    """How loud."""
    marks: int = 1
    """Exclamation marks."""

def run(config, build):
    storage.write_bytes(build.file("shout.txt"), b"!" * config.marks)
    return StageResult(rows=config.marks, summary={"marks": config.marks})

STAGE = Stage(name="shout", version=1, config=ShoutConfig, run=run, headline=lambda s: f"{s['marks']} marks")
'''


def test_a_new_stage_is_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shouting.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(stages.TABLE, "shout", "shouting:STAGE")
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    told = runner.invoke(cli.cloze, ["shout", "--help"]).output
    assert "How loud." in told
    assert "Exclamation marks." in told
    made = runner.invoke(cli.cloze, ["shout", "--marks", "3", "--out", "a", "--json"])
    assert json.loads(made.stdout.splitlines()[-1])["marks"] == 3
    assert (tmp_path / "a" / "shout.txt").read_text() == "!!!"
    (tmp_path / "mine.yaml").write_text("shout: {marks: 2}\n")
    planned = runner.invoke(cli.cloze, ["plan", "mine.yaml", "--set", "shout.marks=5", "--json"])
    assert [step["stage"] for step in json.loads(planned.stdout.splitlines()[-1])["nodes"]] == [
        "shout"
    ]


def test_options_and_settings_reach_the_stages_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--model bert-mini --set model.hidden_dropout=0` starts from the preset; a learning rate is a
    number from the border on.
    """
    jobs: list[Job] = []

    def keep(head: LaunchCoordinator) -> StageResult:
        jobs.append(head.work.job)
        return StageResult(summary={"loss": 1.0, "tokens_per_second": 1.0})

    monkeypatch.setattr(LaunchCoordinator, "run", keep)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    arguments = [
        "pretrain",
        "--dataset",
        str(tmp_path / "data"),
        "--model",
        "bert-mini",
        "--set",
        "model.hidden_dropout=0",
    ]
    more = [
        "--learning-rate",
        "1e-3",
        "--objective",
        "mlm,nsp",
        "--zero",
        "0",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    found = CliRunner().invoke(cli.cloze, [*arguments, *more])
    assert found.exit_code == 0, found.exception
    config = jobs[0].config
    assert (config["model"]["hidden_dropout"], config["model"]["hidden_size"]) == (0, 256)
    assert (config["learning_rate"], config["objectives"], jobs[0].execution["zero"]) == (
        1e-3,
        ["mlm", "nsp"],
        0,
    )


ONE_PROCESS = {"threads", "timeout_minutes"}
ONE_GPU = {*ONE_PROCESS, "device", "gpu_ids"}


def execution_options(name: str) -> set[str]:
    command = cli.cloze.get_command(click.Context(cli.cloze), COMMAND_OF.get(name, name))
    assert command is not None
    found = command.get_params(click.Context(command))
    return {
        str(one.name).removeprefix(OF_EXECUTION)
        for one in found
        if str(one.name).startswith(OF_EXECUTION)
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, ONE_PROCESS) for name in ("merge", "export", "import")),
        *((name, ONE_GPU) for name in ("evaluate", "perplexity")),
        ("report", set()),
    ],
)
def test_a_stage_of_one_process_shows_no_options_of_a_training(
    name: str, expected: set[str]
) -> None:
    assert execution_options(name) == expected


def test_options_that_a_parallel_stage_does_not_read_are_not_shown() -> None:
    assert {"compile", "micro_batch"} <= execution_options("finetune")
    assert not {"zero", "checkpoint_every", "compile"} & execution_options("vectors")


@pytest.mark.parametrize("name", ["vocab", "dataset", "index", "semdedup", "train-filter"])
def test_only_a_corpus_compares_documents_in_memory(name: str) -> None:
    assert "dedup_in_memory_documents" in execution_options("corpus")
    assert "workers" in execution_options(name)
    assert "dedup_in_memory_documents" not in execution_options(name)


@pytest.mark.parametrize("name", ["report", "submission"])
def test_a_stage_that_gathers_nodes_is_no_command_without_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--out", str(tmp_path / "out")]) == 2
    assert f"use `cloze run CONFIG --only {name}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "option", "default"),
    [
        ("corpus", "--minimum-words", "[default: 30"),
        ("corpus", "--[no-]keep-dropped", "[default: off"),
        ("dataset", "--length", "[default: 128"),
        ("dataset", "--swap-prob", "[default: 0.5"),
        ("finetune", "--[no-]baselines", "[default: on"),
    ],
)
def test_defaults_are_shown(name: str, option: str, default: str) -> None:
    shown = CliRunner().invoke(cli.cloze, [name, "--help-all"], terminal_width=1000).output
    _, _, behind = " ".join(shown.split()).partition(f"{option} ")
    assert default in behind[:300]


@pytest.mark.parametrize(
    "arguments",
    [["plan", "no-such-preset"], ["no-such-command"], ["corpus", "--minimum-words", "x"]],
)
def test_an_error_is_json_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments, "--json"]) == 2
    printed = capsys.readouterr()
    answer = json.loads(printed.out.splitlines()[-1])
    assert answer["error"]["exit_code"] == 2
    assert printed.err == f"cloze: {answer['error']['message']}\n"
    assert printed.out.count("\n") == 1


@pytest.mark.parametrize("name", ["-x", "a b", "a\nb", "a/b/c", "a//b", "/b", "a/..", ".x", ""])
def test_a_run_s_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(UsageError, match="must consist of letters"):
        RunConfig({"corpus": {"sources": []}, "name": name}, "a b")


@pytest.mark.parametrize("name", ["run-1", "größe.2", "日本語", "a_b"])
def test_a_run_s_name_may_be_of_any_language(name: str) -> None:
    source = {"kind": "text", "path": "."}
    assert RunConfig({"corpus": {"sources": [source]}, "name": name}, "x").name == name


@pytest.mark.parametrize(
    "name", ["likelihood", "heads", "layers", "probe", "score-pairs", "merge", "prune", "export"]
)
@pytest.mark.parametrize("given", [["W/a"], ["--checkpoint", "W/a"], ["--checkpoint=W/a"]])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_checkpoint_is_an_argument_and_its_option_works(
    name: str, given: list[str], is_last: bool
) -> None:
    command = cli._load(name)
    others = ["b.tsv"] if name in ("score-pairs", "layers") else []
    options = ["--out", "W/out"]
    arguments = [*options, *given, *others] if is_last else [*given, *others, *options]
    context = command.make_context(name, arguments)
    assert context.params["input__checkpoint"] == "W/a"
    assert context.params["out"] == "W/out"
    assert not others or "b.tsv" in context.params.values()


def test_what_commands_say_of_inputs_and_fields_is_of_their_stages() -> None:
    """A name that a stage does not have would be passed over, and the general words stand."""
    context = click.Context(cli.cloze)
    found = [cli.cloze.get_command(context, name) for name in cli.cloze.list_commands(context)]
    commands = [command for command in found if isinstance(command, StageCommand)]
    assert len(commands) > 15
    for command in commands:
        stage = stages.stage(command.stage)
        assert set(command.inputs) <= set(stage.inputs), command.name
        assert set(command.spelled) <= set(stage.config.model_fields), command.name
        assert {*command.positional} <= {*stage.inputs, *stage.config.model_fields}, command.name
