"""Every preset's training is set up, takes a step and is evaluated, on a device that refuses
another one's tensors; and so are fine-tunings, predictions, scores and embeddings.

Torch's meta device stands in for a GPU (`tests.model.stand_in`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.flows.graph import config as configs
from cloze.flows.graph.nodes import Node
from cloze.labs.embed import EmbeddingPipeline
from cloze.model import checkpoint
from cloze.model.data.batch import move
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import FAMILIES, model_config
from cloze.model.tasks.evaluate import run as evaluate_run
from cloze.model.tasks.evaluate.stage import STAGE as EVALUATE
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune import fit
from cloze.model.tasks.finetune import run as finetune_run
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import StopRequest, World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.evaluate.heldout import evaluate
from cloze.model.train.optimizers import OPTIMIZERS
from cloze.model.train.plan.estimates import ComputeOptions, StepCost
from cloze.model.train.setup import prepare
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.interfaces import BatchSource, TrainModule
from cloze.model.train.spec.train_spec import TrainingHyperparameters
from cloze.model.use.scorer import SentenceScorer
from cloze.pipeline import tokenizer
from tests.flows.presets.reading import OF_A_CHECKPOINT, Load
from tests.glue_files import write_glue
from tests.labs.retrieval.test_bi_encoder_task import examples, write_rows
from tests.model.datasets import write_dataset
from tests.model.stand_in import stand_in
from tests.parity.test_finetune_classification import write_choices, write_texts
from tests.parity.test_finetune_spans import write_questions
from tests.parity.test_finetune_tags import write_columns
from tests.slices import few
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint, write_classifier

Pretrained = Callable[[str], str]

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "vocab_size": 0,
}
WIDTHS = {"embedding_size": 16, "attention_window": 8, "local_attention": 8}


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
    return stand_in(monkeypatch)


def take_a_step(
    module: TrainModule, source: BatchSource, recipe: TrainingHyperparameters, world: World
) -> None:
    """As `cloze.model.train.loop.steps` does it: all of the step, the update too."""
    engine = create_engine(
        EngineConfig("torch", 0), module, recipe, world, micro_batch=4, accumulation=1
    )
    counts = torch.ones(len(module.names), device=world.device)
    for item in source.step_batches(0, 0, 1).micro_batches:
        figures = engine.backward(move(item.batch, world.device), counts, last=True)
    norm = engine.step(1e-3)
    assert {tensor.device for tensor in (figures, norm, *module.parameters())} == {world.device}


def pretrain(config: PretrainConfig, inputs: dict[str, str], out: Path, world: World) -> None:
    """Set up, take a step, evaluate."""
    build = BuildContext(path=str(out), inputs=inputs, execution=Execution(), fingerprint="f" * 64)
    setup = prepare(config, build, world)
    take_a_step(setup.scoring, setup.source, setup.training.hyperparameters, world)
    evaluate(setup.scoring, setup.heldout, world)


def trainings(load: Load, name: str) -> list[Node]:
    nodes = load(name).nodes.values()
    return [node for node in nodes if node.stage == "pretrain" and "continue" not in node.inputs]


OF_EACH_KIND = (  # family, objective, pairs, precision, max_time, continued, milestones by words
    "albert-base", "attention-heads", "babylm-strict-small", "before-bert", "bert-large-two-phase",
    "clm-then-mlm", "deberta-v3-base", "electra-small", "modernbert-base", "roberta-base",
    "spanbert-large", "speedrun", "t5-objectives",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", few(sorted(set(configs.preset_names()) - OF_A_CHECKPOINT), *OF_EACH_KIND)
)
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
        # the datasets do not say their masking and words
        changes |= {"final_mask_rate": None, "milestone_words": ()}
        if config.max_time is not None:  # counts from the start of the process, here pytest's
            changes |= {"max_time": None, "steps": 5}
        config = config.model_copy(update=changes)
        pretrain(config, {"dataset": datasets[pairs]}, tmp_path / node.name, meta)


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
    pretrain(config, {"dataset": datasets[None], "teacher": str(path)}, tmp_path / "out", meta)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_optimizers(
    optimizer: str, datasets: dict[str | None, str], meta: World, tmp_path: Path
) -> None:
    config = PretrainConfig(
        model=tiny(None), steps=5, global_batch=8, precision="fp32", optimizer=optimizer
    )
    pretrain(config, {"dataset": datasets[None]}, tmp_path / "out", meta)


def finetune(config: FinetuneConfig, path: str, out: Path, world: World) -> None:
    """Set up as the stage does, take a step, evaluate."""
    build = BuildContext(
        path=str(out),
        inputs={"checkpoint": path},
        execution=Execution(),
        fingerprint="f" * 64,
    )
    setup = finetune_run.prepare(config, build, world, StopRequest())
    training, _ = fit.prepare(setup, setup.start.state, build.path)
    take_a_step(training.trained, training.data.source, training.hyperparameters, world)
    assert training.evaluator is not None
    moment = training.hyperparameters.duration.progress_at(1, 0, ())
    assert training.evaluator(1, moment, lambda: False)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    """A checkpoint of a family."""
    base = tmp_path_factory.mktemp("pretrained")

    @functools.cache
    def written(family: str) -> str:
        changes = {"max_position_embeddings": 64, "num_hidden_layers": 4}
        return write_checkpoint(base / family, base / f"{family}-pieces", family=family, **changes)

    return written


@pytest.mark.parametrize("name", few(sorted(OF_A_CHECKPOINT), "multitask", "transfer"))
def test_fine_tuning(
    name: str, load: Load, pretrained: Pretrained, meta: World, tmp_path: Path
) -> None:
    nodes = [node for node in load(name).nodes.values() if node.stage == "finetune"]
    configs_of: dict[Any, Any] = {}
    for node in nodes:
        config: Any = node.config
        configs_of[config.task, config.frozen] = config
    assert configs_of
    for number, config in enumerate(configs_of.values()):
        changes = {"max_length": 40, "precision": "fp32", "lstm_size": 8}
        config = config.model_copy(update=changes)
        finetune(config, pretrained("bert"), tmp_path / str(number), meta)


TASKS = ["classification", "squad2", "tagging", "choice", "retrieval"]


@pytest.mark.parametrize("family", few(["bert", "roberta", "modern", "deberta"], "bert", "modern"))
@pytest.mark.parametrize("name", TASKS)
def test_tasks(name: str, family: str, pretrained: Pretrained, meta: World, tmp_path: Path) -> None:
    data = tmp_path / "data"
    options: dict[str, Any] = {}
    if name == "classification":
        write_texts(data, pairs=True)
        options = {"columns": {"text": "first", "pair": "second", "label": "class"}}
    elif name == "choice":
        options = {"endings": write_choices(data)}
    elif name == "retrieval":
        data.mkdir()
        for split in ("train", "dev"):
            write_rows(data, examples(12), f"{split}.tsv")
    else:
        (write_questions if name == "squad2" else write_columns)(data)
    config = FinetuneConfig(
        task=name, data=str(data), options=options, precision="fp32", max_length=40, global_batch=4
    )
    finetune(config, pretrained(family), tmp_path / "out", meta)


# The stages that read a checkpoint.


FILLERS = [  # of masks
    family
    for family in FAMILIES
    if not {"lm", "seq2seq", "bilm"} & tiny_config(family).heads.keys() and family != "xlnet"
]


@pytest.mark.parametrize("family", FILLERS)
def test_embeddings_and_scores(family: str, pretrained: Pretrained, meta: World) -> None:
    texts = ["the cat sat on the mat.", "a", "walking dogs walked in paris"]
    vectors = EmbeddingPipeline(pretrained(family), device=meta.device).embed(texts)
    assert vectors.shape == (3, 16)
    for mask in ("token", "whole-word"):
        scorer = SentenceScorer(pretrained(family), mask=mask, device=meta.device)
        assert len(scorer.scored(texts)) == 3


@pytest.mark.parametrize("family", ["gpt2", "ltr"])
def test_scores_from_left_to_right(family: str, pretrained: Pretrained, meta: World) -> None:
    scorer = SentenceScorer(pretrained(family), device=meta.device)
    assert scorer.left_to_right
    assert len(scorer.scored(["the cat sat on the mat.", "a"])) == 2


def test_evaluation_of_a_task(meta: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage, from its checkpoint to its files."""
    monkeypatch.setattr(evaluate_run, "init_distributed", lambda _: meta)
    path = write_classifier(tmp_path / "tuned", tmp_path / "pieces", labels=("0", "1"))
    data = write_glue(tmp_path / "glue")
    made = execute(
        EVALUATE,
        EvaluateConfig(data=str(data), precision="fp32"),
        {"checkpoint": path},
        str(tmp_path / "out"),
        execution=Execution(),
        report=Reporter(),
    )
    assert "accuracy" in made.as_json()["metrics"]


def test_the_default_micro_batch_fits_at_the_precision_of_the_training(
    datasets: dict[str | None, str],
    meta: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny(None).model_copy(update={"vocab_size": 64})
    how = ComputeOptions(bf16=False)
    free = StepCost.of(model, 32, how).memory(20_000).training
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    config = PretrainConfig(model=model, steps=5, global_batch=1 << 16, precision="fp32")
    build = BuildContext(
        path=str(tmp_path),
        inputs={"dataset": datasets["nsp"]},
        execution=Execution(),
        fingerprint="f" * 64,
    )
    rows = prepare(config, build, meta).training.execution.micro_batch
    assert rows >= 8
    assert StepCost.of(model, 32, how).memory(rows).training <= free


def test_the_default_micro_batch_of_fine_tuning_fits_at_its_precision(
    pretrained: Pretrained, meta: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_columns(tmp_path / "data")
    config = FinetuneConfig(
        task="tagging", data=str(tmp_path / "data"), max_length=40, global_batch=1 << 16
    )
    model = checkpoint.load(pretrained("bert")).model
    found: dict[str, int] = {}
    for precision in ("fp32", "bf16"):
        build = BuildContext(
            path=str(tmp_path / precision),
            inputs={"checkpoint": pretrained("bert")},
            execution=Execution(),
            fingerprint="f" * 64,
        )
        changed = config.model_copy(update={"precision": precision})
        setup = finetune_run.prepare(changed, build, meta, StopRequest())
        length = int(setup.train.samples.lengths.max())
        free = StepCost.of(model, length, ComputeOptions(bf16=False)).memory(20_000).training
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, free))
        training, _ = fit.prepare(setup, setup.start.state, build.path)
        found[precision] = training.execution.micro_batch
        how = ComputeOptions(bf16=precision == "bf16")
        assert StepCost.of(model, length, how).memory(found[precision]).training <= free
    assert found["bf16"] > found["fp32"] >= 8
