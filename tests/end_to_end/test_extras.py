"""The extras of the distribution: data needs no torch, training needs no Beam, and what is missing is
named with the extra that installs it. The packages of the other extras are hidden from all processes.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cloze.core.errors import describe_missing_package
from tests import warm, warm_forks
from tests.conftest import REPOSITORY
from tests.end_to_end import hiding
from tests.slices import few

MODULES = {  # of the distributions whose module has another name
    "apache-beam": "apache_beam", "backports-zstd": "backports", "lxml-html-clean": "lxml_html_clean",
    "markdown-it-py": "markdown_it", "phonenumberslite": "phonenumbers", "scikit-learn": "sklearn",
}  # fmt: skip


def modules(extra: str) -> set[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = [Requirement(text).name for text in project["optional-dependencies"][extra]]
    names = [re.sub(r"[-_.]+", "-", name) for name in names]
    return {MODULES.get(name, name) for name in names}


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=few(["forks", "fresh processes"], "forks"))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a command where only one extra is installed."""
    (tmp_path / "hook").mkdir()
    is_fork = request.param == "forks"
    if not is_fork:
        content = Path(hiding.__file__).read_text()
        (tmp_path / "hook" / "sitecustomize.py").write_text(f"{content}\n\nhide()\n")

    def call(extra: str, *words: str) -> subprocess.CompletedProcess[str]:
        hidden = set().union(*map(modules, {"data", "train", "flows"} - {extra})) - modules(extra)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                map(str, (tmp_path / "hook", REPOSITORY / "src", REPOSITORY))
            ),
            "HIDDEN": " ".join(hidden),
            "CLOZE_RUNS": str(tmp_path / "runs"),
            "CLOZE_RUNS_DIR": str(tmp_path / "runs"),
        }
        if is_fork:
            environment[warm_forks.PREPARE] = "tests.end_to_end.hiding:hide"
        command = [warm.python() if is_fork else sys.executable, "-m", "cloze", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )

    return call


ALONE = ("--set=run.processes=1", "--set=run.workers=1")


@pytest.mark.soak
def test_each_extra_does_its_part_of_a_run(run: Run, tmp_path: Path) -> None:
    made = run("data", "run", "sample", "--until", "dataset", *ALONE)
    assert made.returncode == 0, made.stderr
    assert "MLflow is not installed here" in " ".join(made.stderr.split())
    without_torch = run("data", "run", "sample", "--until", "pretrain", *ALONE)
    assert without_torch.returncode == 2
    assert "'cloze-pretraining-base[train]'" in " ".join(without_torch.stderr.split())
    short = ["--set=pretrain.steps=4", "--set=finetune.baselines=false", *ALONE]
    short += ["--set=finetune.epochs=1", "--set=run.threads=1"]
    trained = run("train", "run", "sample", *short)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "sample" / "report").is_dir()


@pytest.mark.parametrize(
    "extra", few(["data", "train", "flows", "s3", "onnx"], "data", "train", "s3")
)
@pytest.mark.parametrize("command", ["doctor", "clean"])
def test_doctor_and_clean_run_with_any_extra(run: Run, extra: str, command: str) -> None:
    ended = run(extra, command, "--json")
    assert "No module named" not in ended.stderr
    assert "error" not in json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("extra", "words", "missing"),
    [
        ("flows", ("corpus", "--source", "text=a.txt", "--out", "corpus"), "data"),
        ("train", ("ui",), "flows"),
    ],
)
def test_a_missing_extra_is_named(
    run: Run, tmp_path: Path, extra: str, words: tuple[str, ...], missing: str
) -> None:
    (tmp_path / "a.txt").write_text("A first sentence. And a second one.\n")
    ended = run(extra, *words)
    assert ended.returncode == 2
    assert f"'cloze-pretraining-base[{missing}]'" in " ".join(ended.stderr.split())


def imported_modules() -> dict[str, str]:
    """The modules of other distributions that the product imports anywhere -> a file that does."""
    found: dict[str, str] = {}
    for folder in ("core", "pipeline", "model", "flows", "labs"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names = [str(node.module)]
                tops = {name.partition(".")[0] for name in names}
                found |= {top: str(path) for top in tops - sys.stdlib_module_names - {"cloze"}}
    return found


def test_each_imported_package_is_required_or_named_with_its_extra() -> None:
    required = {"annotated_types", "pydantic_core", "yaml"}  # of pydantic and pyyaml
    required |= {"gigatoken", "pynvml"}  # it goes without them
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required |= {Requirement(text).name for text in project["dependencies"]}
    extras = project["optional-dependencies"].keys()
    unnamed = []
    for module, path in imported_modules().items():
        sentence = describe_missing_package(ModuleNotFoundError(module, name=module))
        named = re.search(r"cloze-pretraining-base\[([a-z0-9,]+)\]", sentence)
        known = named is not None and set(named[1].split(",")) <= extras
        if module not in required and not known:
            unnamed.append(f"{path}: {sentence}")
    assert not unnamed, "\n".join(unnamed)


def test_an_installation_with_a_wrong_python_ends_before_its_downloads(tmp_path: Path) -> None:
    (tmp_path / "begun" / "bin").mkdir(parents=True)
    (tmp_path / "begun" / "bin" / "python").symlink_to(sys.executable)  # by a venv without pip
    for name in ("new", "begun"):
        words = ["make", "install", "PYTHON=false", f"VENV={tmp_path / name}"]
        ended = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert "Cloze needs Python 3.11 to 3.13, and 'false' is none" in ended.stderr
    assert not (tmp_path / "new").exists()


def test_the_distribution_of_users_requires_all_of_this_version() -> None:
    base = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    path = REPOSITORY / "infra" / "cloze-pretraining" / "pyproject.toml"
    user = tomllib.loads(path.read_text())["project"]
    extras = base["optional-dependencies"].keys() - {"dev"}
    assert user["dependencies"] == [f"{base['name']}[data,train,flows]=={base['version']}"]
    assert user["optional-dependencies"] == {
        name: [f"{base['name']}[{name}]=={base['version']}"]
        for name in extras - {"data", "train", "flows"}
    }
