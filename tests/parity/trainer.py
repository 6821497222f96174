"""Fine-tuning next to transformers' Trainer: the same weights, batches, rates and decay; the loss
of every step of both.

Ours is the stage itself, run in this process: its order of the samples, its layouts, its loop.
Theirs is the `TokenizerTrainer` with the class of transformers that opens the export of our first
weights, in fp32 on the CPU, offline. Three of its settings are not its defaults: the samples of
each batch, the epsilon of BERT's Adam, and a first step of the warm-up whose rate is not 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cloze.model import checkpoint
from cloze.model.hub.write import write_directory
from cloze.model.layers.batch import Batch
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.kinds.choice import ENDINGS
from cloze.model.tasks.source import EpochSource
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import encoded
from cloze.model.train.spec.train_spec import TrainingHyperparameters
from cloze.pipeline import tokenizer
from tests.model.tasks.stages import finetune
from tests.parity.families import their_inputs, transformers

STEPS = 50  # that are compared
DEFAULTS = {field.name: field.default for field in fields(TrainingHyperparameters)}
EQUAL = 1e-5  # nats: what two losses of a step may differ by

pytest.importorskip(
    "accelerate", reason="transformers' Trainer needs accelerate, which is not installed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The loss of each step, nats."""

    ours: list[float]
    theirs: list[float]


# One of our batches -> the answers as the class of transformers takes them: names of its arguments
# to int64 tensors.
Labels = Callable[[Batch], dict[str, Tensor]]


def fine_tune_both(config: FinetuneConfig, pretrained: str, out: Path, labels: Labels) -> Losses:
    """Fine-tune the checkpoint `pretrained` here and with transformers' Trainer.

    Args:
        config: in fp32; of at least `STEPS` and at most 199 steps, so that each has a log entry.
        pretrained: a complete checkpoint without dropout.
        out: a directory to make, for what both write.
        labels: the answers of a batch.
    """
    finetune(config, pretrained, out / "ours")
    lines = [
        json.loads(line)
        for line in (out / "ours" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    ours = [line["train_loss"] for line in lines]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    model, batches = _beginning(config, pretrained, labels, out / "export")
    assert STEPS <= len(batches) == len(ours)
    return Losses(ours=ours, theirs=_losses(model, batches, config, str(out / "theirs")))


def assert_equal(found: Losses) -> None:
    """The first `STEPS` losses of both are the same, and the models learned: of models that stand
    still that would say little.
    """
    differences = [
        abs(a - b) for a, b in zip(found.ours[:STEPS], found.theirs[:STEPS], strict=True)
    ]
    assert max(differences) < EQUAL, (
        f"step {differences.index(max(differences)) + 1} differs by {max(differences):.2e}"
    )
    early, late = (sum(found.ours[part]) / 10 for part in (slice(10), slice(STEPS - 10, STEPS)))
    assert late < 0.9 * early


def _beginning(
    config: FinetuneConfig, pretrained: str, labels: Labels, out: Path
) -> tuple[Any, list[dict[str, Tensor]]]:
    """Their model with the weights that ours begins with, and the batches of all steps as it takes
    them.
    """
    task = load_task(config.task, config.options)
    loaded = checkpoint.load(pretrained)
    train = task.read(str(config.data), "train", config.limit_per_class)
    meaning = task.metadata(train)
    network = new_network(task, loaded.model, loaded.state, meaning, config.dropout, config.seed)
    heads = task.heads(meaning)
    start = replace(
        loaded, state=network.state_dict(), heads=heads, task={"name": config.task, **meaning}
    )
    model = getattr(transformers, write_directory(start, str(out))["architectures"][0])
    model = model.from_pretrained(str(out), local_files_only=True)
    for module in model.modules():  # AlbertConfig has a dropout of its own for the classifier
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    longest = config.max_length or min(task.max_length, loaded.model.max_position_embeddings)
    samples = encoded(task, train, meaning, tokenizer.load(loaded.tokenizer), longest).samples
    source = EpochSource(
        samples, batch_size=config.global_batch, seed=config.seed, micro_batch=config.global_batch
    )
    batches = []
    for step in range(config.epochs * source.steps_per_epoch):
        (item,) = source.step_batches(step, 0, 1).micro_batches
        inputs = their_inputs(model, item.batch)
        if "choice" in heads:  # [B, K, L]
            inputs = {
                name: tensor.unflatten(0, item.batch[ENDINGS].shape)
                for name, tensor in inputs.items()
            }
        batches.append({**inputs, **labels(item.batch)})
    return model, batches


def _losses(
    model: Any, batches: list[dict[str, Tensor]], config: FinetuneConfig, out: str
) -> list[float]:
    """Their Trainer's loss of every step."""
    steps, warmup = len(batches), math.ceil(len(batches) * config.warmup_share)
    found: list[float] = []

    class Told(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(self.train_dataset, batch_size=None, shuffle=False)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            def factor(
                step: int,
            ) -> (
                float
            ):  # as get_linear_schedule_with_warmup has it, whose warm-up begins with 0 / warmup
                return (step + 1) / warmup if step < warmup else (steps - step) / (steps - warmup)

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
            return self.lr_scheduler

        def training_step(
            self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Any = None
        ) -> Tensor:
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
            found.append(float(loss))
            return loss

    arguments = transformers.TrainingArguments(
        output_dir=out,
        max_steps=steps,
        learning_rate=config.peak_learning_rate(model.config.hidden_size),
        weight_decay=config.weight_decay,
        max_grad_norm=config.grad_clip,
        adam_beta1=DEFAULTS["betas"][0],
        adam_beta2=DEFAULTS["betas"][1],
        adam_epsilon=DEFAULTS["eps"],
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    Told(model=model, args=arguments, train_dataset=batches).train()
    assert len(found) == steps
    return found
