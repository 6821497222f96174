"""A family is a file and one line, an objective a file and one line: added to a copy of the
program, used from its command line.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.checkout import copy_packages, import_path
from tests.model.datasets import write_dataset

FAMILY = '''
"""BERT that is scored twice for what it predicts."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig


class TwinConfig(ModelConfig):
    """BERT with a second loss."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("mlm", "again")

    family: UnionTag[Literal["twin"]] = "twin"

    again_weight: float = 0.5
    """Weight of the second score."""

    def loss_weights(self) -> Mapping[str, float]:
        return {"again": self.again_weight}


CONFIG = TwinConfig
PRESETS = {"twin-tiny": TwinConfig.of_size(2, 128, again_weight=0.25)}


class TwinFormat(bert.BertFormat):
    family = "twin"
    architectures = {frozenset({"masked_lm"}): "BertForMaskedLM"}


HUB = TwinFormat()


def build_model(config):
    from cloze.model.families.models import encoder, masked_lm
    from cloze.model.families.pretraining import PretrainingModel

    return PretrainingModel(encoder(config), masked_lm(config))
'''
OBJECTIVE = """
from cloze.model.objectives.losses import masked_objective

AGAIN = masked_objective("again", "masked_lm", "mlm_logits")
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program and its tests, with a family and an objective more."""
    root = tmp_path_factory.mktemp("program")
    copy_packages(root, "tests")
    (root / "model/families/twin.py").write_text(FAMILY)
    add_line(
        root / "model/families/registry.py", "FAMILIES", '"twin": "cloze.model.families.twin",'
    )
    (root / "model/objectives/again.py").write_text(OBJECTIVE)
    add_line(
        root / "model/objectives/__init__.py",
        "OBJECTIVES",
        '"again": "cloze.model.objectives.again:AGAIN",',
    )
    return root


def add_line(path: Path, table: str, line: str) -> None:
    first = f"_{table} = {{\n"
    before = path.read_text()
    assert before.count(first) == 1
    path.write_text(before.replace(first, f"{first}    {line}\n"))


def python(program: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": import_path(program)}
    done = subprocess.run(
        [warm.python(), *arguments],
        capture_output=True,
        text=True,
        cwd=program,
        env=environment,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def cloze(program: Path, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        python(program, "-c", warm.ENTRY, *map(str, arguments), "--json").splitlines()[-1]
    )
    return found


def test_both_are_used_from_the_command_line(program: Path, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    settings = [
        "--steps",
        2,
        "--set",
        "global_batch=8",
        "--set",
        "heldout_rows=4",
        "--device",
        "cpu",
        "--precision",
        "fp32",
    ]
    trained = cloze(
        program,
        "pretrain",
        "--dataset",
        dataset,
        "--model",
        "twin-tiny",
        *settings,
        "--out",
        tmp_path / "run",
    )
    assert trained["steps"] == 2
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert line["again_loss"] == line["mlm_loss"]
    config = json.loads((tmp_path / "run" / trained["checkpoint"] / "config.json").read_text())
    assert (config["model"]["family"], config["model"]["again_weight"]) == ("twin", 0.25)


def test_the_tests_of_all_families_find_it_and_pass(program: Path) -> None:
    pytest.importorskip("transformers")
    tests = ["tests/parity/test_families.py", "tests/model/families"]
    found = python(
        program,
        "-m",
        "pytest",
        *tests,
        "-k",
        "twin",
        "-v",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
    )
    for name in (
        "test_logits_and_gradients_agree",
        "test_an_export_opens_and_comes_back",
        "test_counts_are_those_of_transformers",
    ):
        assert any(name in line and "PASSED" in line for line in found.splitlines()), found
