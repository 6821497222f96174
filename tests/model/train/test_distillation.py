"""Students of a teacher in pretraining: losses by hand, any masked model, resume, refusals."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, mse_loss, softmax

from cloze.core.errors import StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import first_weights, load_model, new_model
from cloze.model.objectives import objectives
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.objectives.distillation import Comparison, add_projection
from cloze.model.train import start
from cloze.model.train.plan.estimates import flops_per_token
from cloze.model.train.resume.initialization import Teacher
from cloze.model.train.stage import STAGE
from tests.model.datasets import write_dataset
from tests.model.scores import score
from tests.model.tasks.stages import Listener
from tests.model.train.ranks import config
from tests.tiny_models import tiny_batch, tiny_config, tiny_model

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
    dropout = {"hidden_dropout": 0.5, "attention_dropout": 0.5}
    pretrain(dataset, out, steps=2, model=tiny_config(vocab_size=0, **dropout))
    return str(out)


def states_of(network: Any, batch: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Embeddings and layers, and q, k, v of the last layer, computed layer by layer."""
    encoder = network.encoder
    rows = encoder.rows(batch["input_ids"], batch["attention_mask"])
    states = [encoder.embeddings(batch["input_ids"], batch["token_type_ids"], rows.positions)]
    for layer in encoder.layers:
        states.append(layer(states[-1], rows))
    layer = list(encoder.groups[-1])[-1] if hasattr(encoder, "groups") else encoder.layers[-1]
    seen = layer.attention_input_norm(states[-2])
    attention = layer.attention
    if attention.fused:
        return [*states[:-1], encoder.norm(states[-1])], list(attention.qkv(seen).chunk(3, -1))
    parts = [getattr(attention, name)(seen) for name in ("query", "key", "value")]
    return [*states[:-1], encoder.norm(states[-1])], parts


def head_relations(vectors: Tensor, heads: int) -> list[Tensor]:
    """softmax(X X^T / sqrt(H)) of each head of a row's real tokens, [L, D]."""
    return [softmax(x @ x.T / math.sqrt(x.shape[-1]), -1) for x in vectors.chunk(heads, -1)]


@pytest.mark.parametrize(
    ("student", "teacher", "heads"),
    [
        ({**NARROW}, {"num_hidden_layers": 4}, None),
        ({"family": "albert", "num_hidden_layers": 3, **NARROW}, {"num_hidden_layers": 5}, None),
        ({"family": "modern", **NARROW}, {"family": "roberta", "num_hidden_layers": 3}, 8),
        ({"family": "bert"}, {"family": "modern", "num_hidden_layers": 4}, 2),
        ({**NARROW}, {"heads_by_layer": [3, 2]}, None),
    ],
    ids=lambda value: value.get("family", "bert") if isinstance(value, dict) else str(value),
)
def test_the_losses_are_those_of_the_papers(
    student: dict[str, Any], teacher: dict[str, Any], heads: int | None
) -> None:
    models: tuple[ModelConfig, ModelConfig] = (tiny_config(**student), tiny_config(**teacher))
    own, other = tiny_model(1, **student), tiny_model(2, **teacher).requires_grad_(False)
    batch, names = tiny_batch(), ("distillation", "states", "relations")
    add_projection(own, *models, names)
    outputs, answers, compared = Comparison(own, other, models, names, heads)(batch)
    source = Teacher(models[1], other.state_dict())
    source.prepare_for(models[0], DistillOptions(temperature=3.0))
    outputs |= {**source.rename(answers), **compared}
    losses = [score(objective, outputs, batch) for objective in objectives(names)]

    wanted = softmax(other(batch)["mlm_logits"] / 3, -1)
    soft = 9 * kl_div(log_softmax(own(batch)["mlm_logits"] / 3, -1), wanted, reduction="sum")
    (mine, own_parts), (theirs, other_parts) = states_of(own, batch), states_of(other, batch)
    real, layers = batch["attention_mask"], len(mine) - 1
    project = own.get_submodule("distillation") if hasattr(own, "distillation") else nn.Identity()
    hidden = torch.zeros(())
    for number, state in enumerate(mine):
        target = theirs[number * (len(theirs) - 1) // layers]
        hidden = hidden + mse_loss(project(state)[real], target[real]) * real.sum() / len(mine)
    relations, heads = torch.zeros(()), heads or models[1].heads_of(models[1].num_hidden_layers - 1)
    for a, b in zip(own_parts, other_parts, strict=True):
        for row, length in enumerate(real.sum(dim=1).tolist()):
            pairs = zip(
                head_relations(a[row, :length], heads),
                head_relations(b[row, :length], heads),
                strict=True,
            )
            relations = relations + sum((y * (y / x).log()).sum() for x, y in pairs) / heads
    for loss, expected in zip(losses, (soft, hidden, relations), strict=True):
        torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-4)
    assert [int(loss.count) for loss in losses] == [
        len(batch["masked_labels"]), int(real.sum()), int(real.sum())
    ]  # fmt: skip
    sum((loss.total for loss in losses), torch.zeros(())).backward()
    assert all(parameter.grad is None for parameter in other.parameters())


def test_the_teacher_stays_as_it_is_and_has_no_dropout(
    dataset: str, teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers: list[Teacher] = []
    load = start.load_teacher

    def recorded(*arguments: Any) -> Teacher:
        teachers.append(load(*arguments))
        return teachers[-1]

    monkeypatch.setattr(start, "load_teacher", recorded)
    values = {"model": tiny_config(vocab_size=0), "distill": ALL}
    pretrain(dataset, tmp_path / "out", teacher, **values)
    network = teachers[0].network
    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())
    saved = checkpoint.load(teacher).state
    assert all(weight.equal(saved[name]) for name, weight in network.state_dict().items())


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
    own = sum(weight.numel() for weight in new_model(loaded.model).parameters())
    assert whole.manifest.summary["parameters"] == own
    passes = (flops_per_token(loaded.model, 5), flops_per_token(checkpoint.load(teacher).model, 5))
    least = whole.manifest.tokens * (passes[0] + passes[1] / 3)
    assert least < whole.manifest.summary["training_flops"] < 2 * least
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
    bert, fills = tiny_config(vocab_size=0), "students that fill masks"
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("distill needs a teacher", "", {"model": bert, "distill": ALL}),
        (fills, teacher, {"model": tiny_config(family="electra", vocab_size=0)}),
        (fills, teacher, {"model": tiny_config(family="gpt2", vocab_size=0)}),
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


def test_a_teacher_with_another_tokenizer_is_refused(
    dataset: str, teacher: str, tmp_path: Path
) -> None:
    other = tmp_path / "dataset"
    shutil.copytree(dataset, other)
    vocabulary = other / "tokenizer" / "vocab.txt"
    pieces = vocabulary.read_text().splitlines()
    vocabulary.write_text("".join(f"{piece}\n" for piece in [*pieces[:5], *pieces[:4:-1]]))
    with pytest.raises(UsageError, match="tokenizer does not fit") as caught:
        pretrain(str(other), tmp_path / "out", teacher, model=tiny_config(vocab_size=0))
    assert "\n" not in str(caught.value)


def test_a_student_that_starts_from_a_checkpoint_keeps_its_familys_weights(
    dataset: str, teacher: str, tmp_path: Path
) -> None:
    student = tiny_config(family="distilbert", type_vocab_size=0, vocab_size=0)
    pretrain(dataset, tmp_path / "first", steps=1, model=student)
    log = Listener()
    execute(
        STAGE,
        config(steps=1, log_every=1).model_copy(update={"model": None}),
        {"dataset": dataset, "teacher": teacher, "checkpoint": str(tmp_path / "first")},
        str(tmp_path / "second"),
        execution=Execution(threads=1, device="cpu"),
        report=log,
    )
    assert {"distillation_loss", "cosine_loss"} <= log.lines[0].keys()
