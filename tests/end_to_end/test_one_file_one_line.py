"""A corpus reader, a cleaning step, an optimizer, a verb and a flow: each one file and one line; a
schedule: one line.

All are used from the command line.

The same is tested of families and objectives (tests/model/families/test_new_family.py), of tasks
(tests/model/tasks/test_new_kind.py), of stages (tests/flows/commands/test_options.py), and of
masking rules, pairings, recipes and kinds of vocabularies
(tests/pipeline/test_one_file_one_line.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.model.datasets import write_dataset
from tests.program import ENTRY, Program

READER = '''
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import FileReader


class PoemOptions(CorpusOptions):
    """How poems are read."""

    stanza_mark: str = "***"
    """Of the source `poems`: the line between two stanzas."""


class PoemReader(FileReader):
    kind = "poems"
    options = PoemOptions
    patterns = ("*.poem",)

    def read(self, file_slice, options, tally):
        with open(file_slice.path, encoding="utf-8") as stream:
            text = stream.read()
        tally.read(len(text))
        stanzas = tuple(" ".join(stanza.split()) for stanza in text.split(options.stanza_mark))
        yield Document(id=f"poems/{file_slice.name}", source=self.kind, title=file_slice.name, paragraphs=stanzas)


reader = PoemReader()
'''

STEP = '''
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningStep, CleaningResult


class WordOptions(CorpusOptions):
    """A word that nobody may say."""

    forbidden_word: str = ""
    """Documents that hold this word are dropped as `forbidden`."""


def _build(options):
    def forbid(document):
        return CleaningResult(None, "forbidden") if options.forbidden_word in document.text.split() else CleaningResult(document)

    return forbid if options.forbidden_word else None


STEP = CleaningStep(options=WordOptions, build=_build)
'''

OPTIMIZER = '''
import torch

from cloze.model.train.optimizers import OptimizerSpec


class Signs(torch.optim.Optimizer):
    """Goes against the sign of the gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter].setdefault("step", torch.zeros(()))
                    parameter.sub_(group["lr"] * parameter.grad.sign())


OPTIMIZER = OptimizerSpec(build=lambda groups, recipe: Signs(groups, {"lr": recipe.learning_rate}), state=())
'''

SCHEDULE = '"stairs": ScheduleKind(factor=lambda progress, shape: 1.0 if progress < 0.5 else 0.5),'

VERB = '''
import click


@click.command()
@click.argument("name")
def greet(name):
    """Say hello to NAME."""
    click.echo(f"hello {name}")
'''

FLOW = '''
from prefect import flow


@flow(name="greeting")
def greeting(name: str = "you") -> str:
    """Say hello."""
    return f"hello {name}"
'''
DEPLOYMENT = """
  - name: greeting
    description: Say hello.
    entrypoint: cloze.flows.prefect.greeting.greeting
    work_pool:
      name: cloze
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program with one more of each."""
    found = Program.copied(tmp_path_factory.mktemp("program"))
    found.write("pipeline/corpus/readers/poems.py", READER)
    found.add_line(
        "pipeline/corpus/readers/__init__.py",
        "_READERS = {",
        '"poems": "cloze.pipeline.corpus.readers.poems:reader",',
    )
    found.write("pipeline/corpus/steps/forbid.py", STEP)
    found.add_line(
        "pipeline/corpus/steps/chain.py",
        "_STEPS = {",
        '"forbid": "cloze.pipeline.corpus.steps.forbid:STEP",',
    )
    found.write("model/train/optimizers/signs.py", OPTIMIZER)
    found.add_line(
        "model/train/optimizers/__init__.py",
        "_OPTIMIZERS = {",
        '"signs": "cloze.model.train.optimizers.signs:OPTIMIZER",',
    )
    found.add_line(
        "model/train/spec/schedules.py", "SCHEDULES: dict[str, ScheduleKind] = {", SCHEDULE
    )
    found.write("flows/commands/greet.py", VERB)
    row = '"greet": "Say hello to NAME.",'
    found.add_line("flows/cli.py", '    "Operate": {', row)
    found.write("flows/prefect/greeting.py", FLOW)
    with (found.root / "prefect.yaml").open("a") as stream:
        stream.write(DEPLOYMENT)
    return found


def test_a_reader_and_a_cleaning_step(program: Program, tmp_path: Path) -> None:
    for name, words in {
        "sea": "The sea is wide and the sea is old.",
        "war": "The war is long and the war is cold.",
    }.items():
        (tmp_path / f"{name}.poem").write_text(
            f"{words}\n###\nIt has an end, and nobody knows when.\n"
        )
    options = [
        "--stanza-mark",
        "###",
        "--forbidden-word",
        "war",
        "--minimum-characters",
        0,
        "--minimum-words",
        0,
    ]
    made = program.cloze(
        "corpus", "--source", f"poems={tmp_path}", *options, "--out", tmp_path / "corpus"
    )
    assert (made["documents"], made["dropped"]) == (1, {"forbidden": 1})
    explained = program.cloze("explain", "war.poem", "--source", f"poems={tmp_path}", *options)
    assert "forbid" in json.dumps(explained)


def test_an_optimizer_and_a_schedule(program: Program, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    recipe = [
        "--optimizer",
        "signs",
        "--schedule",
        "stairs",
        "--steps",
        4,
        "--warmup-steps",
        0,
        "--learning-rate",
        0.01,
    ]
    how = [
        "--model",
        "bert-tiny",
        "--global-batch",
        8,
        "--set",
        "heldout_rows=4",
        "--precision",
        "fp32",
        "--set",
        "log_every=1",
    ]
    made = program.cloze("pretrain", "--dataset", dataset, *recipe, *how, "--out", tmp_path / "run")
    assert made["steps"] == 4
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines] == [0.01, 0.01, 0.005, 0.005]


def test_a_verb_and_a_flow(program: Program) -> None:
    said = program.python("-c", ENTRY, "greet", "Ada")
    assert (said.returncode, said.stdout) == (0, "hello Ada\n")
    assert "Say hello to NAME" in program.python("-c", ENTRY, "--help").stdout
    load = "import yaml; from prefect.flows import load_flow_from_entrypoint as load\n"
    load += (
        "row = yaml.safe_load(open('prefect.yaml'))['deployments'][-1]; "
        "print(load(row['entrypoint']).fn('Ada'))"
    )
    assert program.python("-c", load).stdout == "hello Ada\n"
