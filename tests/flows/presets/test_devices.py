"""Every preset's training is set up, and takes a step, on a device that refuses another one's
tensors.

Torch's meta device stands in for a GPU: it has shapes alone, takes the branches of a device that is
no CPU, and raises where a tensor of the CPU meets one of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.graph import config as configs
from cloze.flows.graph.nodes import Node
from cloze.model import checkpoint
from cloze.model.data.batch import move
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.layers import unpadded
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.source import TaskObjective, source_of
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import encoded
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.plan.memory import ComputeOptions, training_memory
from cloze.model.train.setup import prepare
from cloze.pipeline import tokenizer
from tests.flows.presets.reading import OF_A_CHECKPOINT, Load
from tests.model.datasets import write_dataset
from tests.parity.pretrained import new_tokenizer
from tests.parity.test_finetune_classification import write_choices, write_texts
from tests.parity.test_finetune_spans import write_questions
from tests.parity.test_finetune_tags import write_columns
from tests.tiny_models import tiny_config, tiny_model

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "vocab_size": 0,
}
WIDTHS = {"embedding_size": 16, "attention_window": 8, "local_attention": 8}
GPU_BYTES = 80 << 30


def tiny(model: ModelConfig | None) -> ModelConfig:
    """The model at a size at which it is built in a moment."""
    model = model or model_config("bert-base")
    own = {name: value for name, value in WIDTHS.items() if name in type(model).model_fields}
    return model.model_copy(update={**SIZES, **own})


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, str]:
    """By the task of their pairs."""
    base = tmp_path_factory.mktemp("datasets")
    return {
        task: write_dataset(base / str(task), rows=16, heldout=8, pair_task=task)
        for task in (None, "nsp", "sop")
    }


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GPU_BYTES, GPU_BYTES))
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda _: False
    )  # it does not know the device
    monkeypatch.setattr(
        unpadded, "varlen_attention", lambda query, key, value, *_: query + key + value
    )
    return World(rank=0, size=1, device=torch.device("meta"))


def take_a_step(config: PretrainConfig, inputs: dict[str, str], out: Path, world: World) -> None:
    build = BuildContext(path=str(out), inputs=inputs, execution=Execution(), fingerprint="f" * 64)
    setup = prepare(config, build, world)
    setup.scoring.to(world.device)
    (batch, *_) = (item.batch for item in setup.source.step_batches(0, 0, 1).micro_batches)
    counts = torch.ones(len(setup.scoring.names), device=world.device)
    loss, _ = setup.scoring(move(batch, world.device), counts)
    loss.backward()
    assert {loss.device.type} == {"meta"}


def trainings(load: Load, name: str) -> list[Node]:
    nodes = load(name).nodes.values()
    return [node for node in nodes if node.stage == "pretrain" and "continue" not in node.inputs]


@pytest.mark.parametrize("name", sorted(set(configs.preset_names()) - OF_A_CHECKPOINT))
def test_pretraining(
    name: str, load: Load, datasets: dict[str | None, str], meta: World, tmp_path: Path
) -> None:
    found = trainings(load, name)
    assert found
    for node in {node.name: node for node in (found[0], found[-1])}.values():  # of a matrix
        config: Any = node.config
        model = tiny(config.model)
        runs_on = "clm" in (config.objectives or ())
        pairs = None if runs_on else {"albert": "sop", "bert": "nsp"}.get(model.family)
        changes = {"model": model, "precision": "fp32", "dynamic_masking": False}
        config = config.model_copy(update=changes)
        take_a_step(config, {"dataset": datasets[pairs]}, tmp_path / node.name, meta)


def test_distillation(datasets: dict[str | None, str], meta: World, tmp_path: Path) -> None:
    """The teacher goes to the device once nothing is computed on the CPU any more."""
    words = (Path(datasets[None]) / "tokenizer" / "vocab.txt").read_text().splitlines()
    teacher = tiny_config(vocab_size=len(words))
    path = tmp_path / "teacher"
    checkpoint.save_weights(
        str(path),
        model=teacher,
        state=tiny_model(vocab_size=len(words)).state_dict(),
        tokenizer=tokenizer.load(str(Path(datasets[None]) / "tokenizer")),
        heads=teacher.heads,
    )
    checkpoint.finalize(str(path))
    student = tiny_config(family="distilbert", num_hidden_layers=1, vocab_size=0)
    config = PretrainConfig(model=student, steps=5, global_batch=8, precision="fp32")
    take_a_step(config, {"dataset": datasets[None], "teacher": str(path)}, tmp_path / "out", meta)


TASKS = ["classification", "squad2", "tagging", "choice"]


@pytest.mark.parametrize("family", ["bert", "roberta", "modern", "deberta"])
@pytest.mark.parametrize("name", TASKS)
def test_tasks(name: str, family: str, meta: World, tmp_path: Path) -> None:
    """A fine-tuning is set up as `cloze.model.tasks.finetune.fit` does it."""
    data = tmp_path / "data"
    options: dict[str, Any] = {}
    if name == "classification":
        write_texts(data, pairs=True)
        options = {"columns": {"text": "first", "pair": "second", "label": "class"}}
    elif name == "choice":
        options = {"endings": write_choices(data)}
    else:
        (write_questions if name == "squad2" else write_columns)(data)
    task = load_task(name, options)
    examples = task.read(str(data), "train", None)
    meaning = task.metadata(examples)
    pieces = new_tokenizer("wordpiece")
    config = tiny_config(family=family, vocab_size=pieces.vocab_size, max_position_embeddings=64)
    objective = TaskObjective(
        task, new_network(task, config, None, meaning, None, 1), "fp32", meta.device
    )
    samples = encoded(task, examples, meaning, pieces, 64).samples
    source = source_of(samples, batch_size=4, seed=1, micro_batch=4, layout=objective.layout)
    freeze_unused(objective, source.blank())
    objective.to(meta.device)
    (batch, *_) = (item.batch for item in source.step_batches(0, 0, 1).micro_batches)
    loss, _ = objective(move(batch, meta.device), torch.ones(1, device=meta.device))
    loss.backward()
    assert {loss.device.type} == {"meta"}


@pytest.mark.parametrize(("precision", "ema"), [("fp32", None), ("fp32", 0.99)])
def test_the_default_micro_batch_fits_at_the_precision_of_the_training(
    precision: str,
    ema: float | None,
    datasets: dict[str | None, str],
    meta: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny(None).model_copy(update={"vocab_size": 64})
    how = ComputeOptions(bf16=precision == "bf16", averaging=ema is not None)
    free = training_memory(model, 32, 20_000, how=how).training
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    config = PretrainConfig(
        model=model, steps=5, global_batch=1 << 16, precision=precision, ema=ema
    )
    build = BuildContext(
        path=str(tmp_path),
        inputs={"dataset": datasets["nsp"]},
        execution=Execution(),
        fingerprint="f" * 64,
    )
    rows = prepare(config, build, meta).training.execution.micro_batch
    assert rows >= 8
    assert training_memory(model, 32, rows, how=how).training <= free
