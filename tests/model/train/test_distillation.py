"""Students of a teacher in pretraining: any masked model, any width, exact resume, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.errors import StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.model import checkpoint
from cloze.model.families.models import first_weights, load_model, new_model
from cloze.model.train.stage import STAGE
from tests.model.datasets import write_dataset
from tests.model.tasks.stages import Listener
from tests.model.train.ranks import config
from tests.tiny_models import tiny_config, tiny_model

NARROW = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
ALL = {"labels": 1.0, "soft": 1.0, "hidden": 1.0, "relations": 1.0}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("data") / "dataset"
    write_dataset(place, pair_task=None, rows=40)
    return str(place)


def pretrain(
    dataset: str, out: Path, teacher: str = "", report: Reporter | None = None, **values: Any
) -> BuildResult:
    inputs = {"dataset": dataset, **({"teacher": teacher} if teacher else {})}
    values = {"steps": 6, "log_every": 1, **values, "model": values["model"].model_dump()}
    execution = Execution(threads=1, device="cpu", **values.pop("execution", {}))
    return execute(
        STAGE, config(**values), inputs, str(out), execution=execution, report=report or Reporter()
    )


@pytest.fixture(scope="module")
def teacher(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("teacher") / "pretrain"
    pretrain(dataset, out, steps=2, model=tiny_config(vocab_size=0))
    return str(out)


def test_a_narrow_student_learns_all_and_resumes_exactly(
    dataset: str, teacher: str, tmp_path: Path
) -> None:
    values = {"model": tiny_config(vocab_size=0, **NARROW), "distill": ALL}
    log = Listener()
    whole = pretrain(dataset, tmp_path / "whole", teacher, report=log, **values)
    names = {"mlm_loss", "distillation_loss", "states_loss", "relations_loss"}
    assert names <= log.lines[0].keys()
    with pytest.raises(StoppedError):
        pretrain(dataset, tmp_path / "parts", teacher, report=Listener(stop_at=3), **values)
    parts = pretrain(dataset, tmp_path / "parts", teacher, **values)
    assert parts.manifest.content_sha256 == whole.manifest.content_sha256
    loaded = checkpoint.load(str(tmp_path / "whole"))
    assert not any(name.startswith("distillation") for name in loaded.state)
    load_model(loaded.model, loaded.state)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modern", "distilbert"])
def test_students_of_other_families_begin_with_what_fits(
    family: str, dataset: str, teacher: str, tmp_path: Path
) -> None:
    student = tiny_config(family=family, vocab_size=0)
    log = Listener()
    pretrain(dataset, tmp_path / "out", teacher, report=log, steps=1, model=student)
    assert "distillation_loss" in log.lines[0]


def test_a_student_of_the_same_family_takes_its_teachers_layers() -> None:
    for family in ("bert", "roberta"):
        wanted = tiny_model(family=family, num_hidden_layers=4).state_dict()
        student = tiny_config(family=family, num_hidden_layers=2)
        taken = first_weights(student, tiny_config(family=family, num_hidden_layers=4), wanted)
        assert taken.keys() == new_model(student).state_dict().keys()
        name = "attention.query.weight"
        assert torch.equal(taken[f"encoder.layers.1.{name}"], wanted[f"encoder.layers.2.{name}"])
        table = "encoder.embeddings.position.weight"
        assert torch.equal(taken[table], wanted[table])


def test_what_cannot_be_is_refused_in_one_sentence(
    dataset: str, teacher: str, tmp_path: Path
) -> None:
    bert = tiny_config(vocab_size=0)
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("distill needs a teacher", "", {"model": bert, "distill": ALL}),
        ("students that fill masks", teacher, {"model": tiny_config(family="electra")}),
        ("students that fill masks", teacher, {"model": tiny_config(family="gpt2")}),
        (
            r"relation_heads \(7\) must divide",
            teacher,
            {"model": bert, "distill": {"relations": 1, "relation_heads": 7}},
        ),
        (
            "compile",
            teacher,
            {"model": bert, "distill": ALL, "execution": {"compile": True}},
        ),
    ]
    for number, (sentence, path, values) in enumerate(cases):
        with pytest.raises(UsageError, match=sentence) as caught:
            pretrain(dataset, tmp_path / str(number), path, **values)
        assert "\n" not in str(caught.value)
