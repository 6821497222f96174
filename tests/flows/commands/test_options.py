"""Options are made from config classes: names, types, bounds, help; for every stage that there is, and for a new one."""

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

from flows import cli
from flows.commands.options import field_options
from flows.commands.spelling import Spelled, comma_separated
from flows.commands.stage_command import OF_CONFIG, OF_EXECUTION, StageCommand
from flows.graph import stages
from flows.launchers.head import Head
from model.train.optimizers import OPTIMIZERS
from pipeline.core.config import InputPath, StageConfig
from pipeline.core.stage import Outcome
from pipeline.core.worker import Job


class EveryKind(StageConfig):
    steps: int = Field(default=1000, ge=1)
    """Optimizer steps."""

    rate: float | None = Field(default=None, gt=0, lt=1)
    precision: Literal["auto", "bf16"] = "auto"
    keep: bool = False
    languages: tuple[str, ...] = ()
    paths: tuple[InputPath, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    columns: dict[str, str] = Field(default_factory=dict)
    data: InputPath | None = None
    names: tuple[str, ...] | None = None
    nested: dict[str, int] | None = None


def options(spelled: dict[str, Spelled] | None = None) -> dict[str, click.Option]:
    return {str(option.name): option for option in field_options(EveryKind, "", "Config", spelled or {})}


def given(*arguments: str, **spelled: Spelled) -> dict[str, object]:
    command = click.Command("x", params=list(options(spelled).values()))
    context = command.make_context("x", list(arguments))
    return {name: value for name, value in context.params.items() if value not in (None, ())}


def test_each_kind_of_field_is_read_as_what_it_is() -> None:
    assert given() == {}
    assert given("--steps", "3", "--rate", "1e-4", "--precision", "bf16", "--no-keep") == {
        "steps": 3,
        "rate": 1e-4,
        "precision": "bf16",
        "keep": False,
    }
    assert given("--languages", "en", "--languages", "de", "--betas", "0.9", "0.98") == {
        "languages": ("en", "de"),
        "betas": (0.9, 0.98),
    }
    assert given("--columns", "text=body", "--columns", "id=key", "--data", "x") == {
        "columns": {"text": "body", "id": "key"},
        "data": "x",
    }
    assert "nested" not in options()


def test_a_field_is_spelled_as_the_verb_says() -> None:
    spelled = Spelled("--name", comma_separated, {"multiple": False})
    assert given("--name", "a,b", names=spelled) == {"names": ["a", "b"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "x>=1"),
        (["--rate", "1"], "0.0<x<1.0|0<x<1"),
        (["--precision", "fp8"], "'auto', 'bf16'"),
        (["--columns", "text"], "must look like NAME=VALUE"),
    ],
)
def test_bounds_and_choices_are_those_of_the_field(arguments: list[str], told: str) -> None:
    with pytest.raises(click.UsageError) as error:
        given(*arguments)
    assert any(part in error.value.format_message() for part in told.split("|"))


def test_help_says_what_the_field_says() -> None:
    context = click.Context(click.Command("x"))
    assert options()["steps"].get_help_record(context) == ("--steps INTEGER", "Optimizer steps.  [default: 1000; x>=1]")
    assert options()["data"].get_help_record(context) == ("--data PATH", "")


@pytest.mark.parametrize("name", stages.TABLE)
def test_every_plain_field_of_a_stage_has_an_option_and_no_name_comes_twice(name: str) -> None:
    command = cli.cloze.get_command(click.Context(cli.cloze), name)
    assert isinstance(command, StageCommand)
    parameters = command.get_params(click.Context(command))
    flags = [flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)]
    assert len(flags) == len(set(flags))
    names = {parameter.name for parameter in parameters}
    plain = {
        field
        for field, info in stages.stage(name).config.model_fields.items()
        if info.annotation in (int, float, str, bool, int | None, float | None, str | None, bool | None)
    }
    assert {f"{OF_CONFIG}{field}" for field in plain} <= names
    assert any(str(found).startswith(OF_EXECUTION) for found in names) == (stages.stage(name).worker is not None)


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_help_names_the_optimizers(verb: str) -> None:
    told = " ".join(CliRunner().invoke(cli.cloze, [verb, "--help"]).output.split())
    assert all(name in told for name in OPTIMIZERS)


@pytest.mark.parametrize("name", ["--help", *(f"{verb} --help" for verb in cli.COMMANDS)])
def test_help_imports_nothing_heavy(name: str) -> None:
    heavy = {"torch", "deepspeed", "apache_beam", "prefect", "mlflow", "transformers", "pyarrow"}
    script = f"import sys\nfrom flows.cli import main\nmain({name.split()!r})\nprint(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


PLUGIN = '''
"""A stage that somebody adds: one file."""
from pipeline.core import storage
from pipeline.core.config import StageConfig
from pipeline.core.stage import Outcome, Stage

class ShoutConfig(StageConfig):
    """How loud."""
    marks: int = 1
    """Exclamation marks."""

def run(config, build):
    storage.write_bytes(build.file("shout.txt"), b"!" * config.marks)
    return Outcome(rows=config.marks, summary={"marks": config.marks})

STAGE = Stage(name="shout", version=1, config=ShoutConfig, run=run, headline=lambda s: f"{s['marks']} marks")
'''


def test_a_new_stage_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [step["stage"] for step in json.loads(planned.stdout.splitlines()[-1])["nodes"]] == ["shout"]


def test_options_and_settings_reach_the_stages_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--model bert-mini --set model.hidden_dropout=0` starts from the preset; a learning rate is a number from the border on."""
    jobs: list[Job] = []

    def keep(head: Head) -> Outcome:
        jobs.append(head.work.job)
        return Outcome(summary={"loss": 1.0, "tokens_per_second": 1.0})

    monkeypatch.setattr(Head, "run", keep)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    arguments = ["pretrain", "--dataset", str(tmp_path / "data"), "--model", "bert-mini", "--set", "model.hidden_dropout=0"]
    more = ["--learning-rate", "1e-3", "--objective", "mlm,nsp", "--zero", "0", "--out", str(tmp_path / "out"), "--json"]
    found = CliRunner().invoke(cli.cloze, [*arguments, *more])
    assert found.exit_code == 0, found.exception
    config = jobs[0].config
    assert (config["model"]["hidden_dropout"], config["model"]["hidden_size"]) == (0, 256)
    assert (config["learning_rate"], config["objectives"], jobs[0].execution["zero"]) == (1e-3, ["mlm", "nsp"], 0)
