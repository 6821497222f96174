"""The core names no lab: neither by imports and strings nor by the words of their subjects; and each
lab has what labs/README.md says.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core import plugins
from cloze.core.plugins import installed
from cloze.flows.doctor.machine import TABLES
from cloze.flows.graph import stages
from cloze.flows.graph.config import preset_paths
from cloze.model.use.verb import PREDICTORS
from tests.conftest import REPOSITORY

CORE = ("core", "pipeline", "model", "flows")
WORDS = {
    *(
        "salient",
        "retrieval",
        "rag",
        "realm",
        "elmo",
        "bilm",
        "submission",
        "paper",
        "plm",
        "xlnet",
    ),
    *("bart", "seq2seq", "denoising", "semdedup", "speedrun", "trainjob", "kubectl", "treebank"),
    *("glove", "word2vec", "fasttext", "bm25", "serving", "rollout", "rewind"),
}
# Inputs of the stages to which labs add some: these are the stages' own.
STATED = {
    "dataset": {"corpus", "vocab", "append"},
    "pretrain": {"dataset", "checkpoint", "continue", "teacher"},
    "finetune": {"checkpoint", "corpus", "vocab", "teacher"},
}
# The list of the labs; and a job that is handed to Slurm, which is a submission, too.
MAY_NAME = {"core/plugins.py"}
OTHER_MEANING = {"flows/launch/slurm": {"submission"}, "flows/launch/": {"submission"}}


def files() -> Iterator[Path]:
    for folder in CORE:
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def identifiers(path: Path) -> Iterator[str]:
    """Yield names that the file binds or reads, and modules that it names."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=module, names=names):
                yield from (module or "", *(alias.name for alias in names))
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"cloze(\.\w+)+(:\w+)?", text):
                yield text
            case _:
                pass


def words(identifier: str) -> set[str]:
    """Return the words of `find_salientUnits`, `a.b:NAME`."""
    return set(re.sub(r"([a-z])([A-Z])", r"\1_\2", identifier).lower().replace(".", "_")
               .replace(":", "_").split("_"))  # fmt: skip


def found() -> dict[str, str]:
    by_file = {}
    for path in files():
        name = path.relative_to(REPOSITORY).as_posix()
        used = {word for each in identifiers(path) for word in words(each)} & WORDS
        used -= set().union(*(own for at, own in OTHER_MEANING.items() if name.startswith(at)))
        if used:
            by_file[name] = " ".join(sorted(used))
    return by_file


def test_the_words_of_the_labs_are_in_no_identifier_of_the_core() -> None:
    assert not found()


NAMED = (
    "families",
    "objectives",
    "masking_rules",
    "recipes",
    "companions",
)  # tables whose rows have rare names


def test_the_core_asks_for_no_row_of_a_lab() -> None:
    """An objective that sees no masks says so by `transform`, and not by its name."""
    names = {row for lab in installed() for kind in NAMED for row in lab.plugin.rows.get(kind, {})}
    names -= {"gpt2"}  # a tokenizer's `model_type` in transformers' files, too
    for path in files():
        constants = {node.value for node in ast.walk(ast.parse(path.read_text()))
                     if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip
        assert not constants & names, path


def test_the_core_names_no_lab() -> None:
    for path in files():
        name = path.relative_to(REPOSITORY).as_posix()
        if name not in MAY_NAME:
            text = path.read_text()
            assert "cloze.labs" not in text, name
            assert "labs." not in " ".join(identifiers(path)), name


def test_no_input_of_the_core_names_a_stage_of_a_lab() -> None:
    """A lab's row says what its artifacts stand for: a corpus without duplicates is a corpus."""
    labs = {*stages.TABLE.owners, *stages.TOOLS.owners}
    for name in {*stages.TABLE, *stages.TOOLS} - labs:
        for role, spec in stages.stage(name).inputs.items():
            of_lab = role not in STATED.get(name, {role})  # the lab adds the input as well
            assert of_lab or not labs.intersection((*spec.kinds, *spec.explicit_kinds)), (
                name,
                role,
            )


BY_NAME = {"run_inference", "run_tool", "open_verb", "stage", "executable"}


def test_the_core_runs_no_stage_and_no_verb_of_a_lab() -> None:
    """The report fills masks, so that verb is the core's own."""
    labs = {*stages.TABLE.owners, *stages.TOOLS.owners, *PREDICTORS.owners}
    run = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id=function) | ast.Attribute(attr=function),
                    args=[ast.Constant(value=str(name)), *_],
                ) if function in BY_NAME:
                    run.add(name)
                case _:
                    pass
    assert "fill-mask" in run
    assert not run & labs


TAKEN = [  # stage, role, stages by default, stages on request
    ("dataset", "corpus", {"corpus", "semdedup"}, set()),
    ("semdedup", "corpus", {"corpus"}, set()),  # not its own kind
    ("vectors", "corpus", {"corpus"}, {"index"}),
    ("finetune", "checkpoint", {"pretrain"},
     {"finetune", "import", "merge", "prune", "static-vectors"}),
    ("pretrain", "checkpoint", {"pretrain"}, {"import", "merge", "prune"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "role", "usual", "named"), TAKEN)
def test_what_stands_for_another_input_is_taken_where_that_is(
    name: str, role: str, usual: set[str], named: set[str]
) -> None:
    spec = stages.stage(name).inputs[role]
    assert {*plugins.with_substitutes(spec.kinds, name)} == usual
    every = (*spec.kinds, *spec.explicit_kinds)
    assert {*plugins.with_substitutes(every, name, role)} == usual | named


@pytest.mark.parametrize("lab", installed(), ids=lambda lab: lab.plugin.name)
def test_a_lab_is_complete(lab: plugins.Installed) -> None:
    name = lab.plugin.name
    folder = REPOSITORY / "labs" / name
    assert lab.directory.resolve() == folder
    assert len((folder / "README.md").read_text().splitlines()) <= 45
    assert f"[{name}]({name}/README.md)" in (REPOSITORY / "labs" / "README.md").read_text()
    assert list((REPOSITORY / "tests" / "labs" / name).glob("test_*.py"))
    assert set(lab.plugin.rows) <= set(TABLES)
    if lab.plugin.presets:
        own = {path.stem for path in (folder / lab.plugin.presets).glob("*.yaml")}
        assert own
        assert own <= set(preset_paths())


def test_all_rows_of_the_labs_can_be_imported() -> None:
    from pkgutil import resolve_name

    for lab in installed():
        for kind, rows in lab.plugin.rows.items():
            table = resolve_name(TABLES[kind])
            for row in rows:
                assert table.owners[row] is lab
                assert table[row] is not None
    assert not plugins.faults
