"""What the stage finetune does, once torch is there: read, train, score the dev split, compare with the baselines, save."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from model import checkpoint
from model.families.config import ModelConfig
from model.families.ltr.config import LtrConfig
from model.families.presets import model_config
from model.tasks.encode import Encoded, encode
from model.tasks.finetune_config import FinetuneConfig
from model.tasks.hardware import Hardware, hardware_of
from model.tasks.heads import SequenceClassifier, new_classifier
from model.tasks.loop import Budget, predict, train
from model.tasks.metrics import score
from model.tasks.predictions import FILE as PREDICTIONS
from model.tasks.predictions import write_predictions
from model.tasks.table import Examples, Task, load_task, task_source
from pipeline import tokenizer
from pipeline.core import storage
from pipeline.core.errors import DataError, UsageError
from pipeline.core.stage import Build, Outcome
from pipeline.dataset.schema import DatasetInfo

CHECKPOINT, METRICS, HISTORY = "checkpoint", "metrics.json", "history.jsonl"
PRETRAINED, SCRATCH = "finetune", "from_scratch"  # the runs, in progress and history
SMALL, SMALL_RATE, USUAL_RATE = 512, 3e-4, 5e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What fine-tuning starts from. `state` is None for random weights."""

    model: ModelConfig
    state: Mapping[str, Tensor] | None
    tokenizer: str
    dataset: DatasetInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split of the task, as read and as encoded."""

    examples: Examples
    encoded: Encoded


def finetune(config: FinetuneConfig, build: Build) -> Outcome:
    """Fine-tune on the task's train split and score its dev split.

    Raises:
        UsageError: an input that the task needs was not named, or max_length exceeds the model's positions.
        DataError: the checkpoint or the data is missing or damaged.
    """
    hardware = hardware_of(build.execution, config.precision)
    task = load_task(config.task)
    source = task_source(task, config.data, build.inputs.get("corpus"))
    start = starting_point(config, build)
    if config.max_length > start.model.max_position_embeddings:
        raise UsageError(
            f"max_length ({config.max_length}) exceeds the model's max_position_embeddings"
            f" ({start.model.max_position_embeddings}); use {start.model.max_position_embeddings} or less"
        )
    pieces = tokenizer.load(start.tokenizer)
    splits = {}
    for name in ("train", "dev"):
        examples = task.read(source, name, config.limit_per_class)
        splits[name] = Split(examples=examples, encoded=encode(examples, pieces, config.max_length))
        _count(build, name, splits[name])
    names = splits["train"].examples.label_names
    budget = Budget(
        epochs=config.epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate or (SMALL_RATE if start.model.hidden_size < SMALL else USUAL_RATE),
        warmup=config.warmup,
        weight_decay=config.weight_decay,
        clip=config.clip,
        seed=config.seed,
    )
    runs = [PRETRAINED]
    if config.baselines and start.state is not None:
        runs.append(SCRATCH)
    session = _Session(config, build, task, splits, budget, hardware, len(runs))

    model, probabilities = session.run(PRETRAINED, start.model, start.state)
    scores = session.score(probabilities)
    checkpoint.save_weights(
        build.file(CHECKPOINT),
        model=start.model,
        state=model.state_dict(),
        tokenizer=start.tokenizer,
        heads={"classifier": {"num_labels": len(names)}},
        task={
            "name": task.name,
            "labels": list(names),
            "max_length": config.max_length,
            "metric": task.metrics[0],
            "limit_per_class": config.limit_per_class,
        },
        dataset=start.dataset,
        step=budget.steps(len(splits["train"].examples)),
    )
    checkpoint.complete(build.file(CHECKPOINT))
    write_predictions(build.file(PREDICTIONS), splits["dev"].examples, probabilities)

    metrics: dict[str, float] = dict(scores)
    if config.baselines:
        metrics["majority"] = splits["dev"].examples.majority_share()
    if SCRATCH in runs:
        metrics[SCRATCH] = session.score(session.run(SCRATCH, start.model, None)[1])[task.metrics[0]]
    content = {
        "task": task.name,
        "split": "dev",
        "metrics": metrics,
        "examples": {name: len(split.examples) for name, split in splits.items()},
        "classes": {name: split.examples.class_counts() for name, split in splits.items()},
        "truncated": {name: split.encoded.truncated for name, split in splits.items()},
        "budget": asdict(budget),
    }
    write_json(build.file(METRICS), content)
    storage.write_bytes(build.file(HISTORY), "".join(json.dumps(line) + "\n" for line in session.history).encode())
    summary = {
        "task": task.name,
        "metrics": metrics,
        "checkpoint": CHECKPOINT,
        "predictions": PREDICTIONS,
        "examples": content["examples"],
        "classes": content["classes"],
        "steps": budget.steps(len(splits["train"].examples)),
        "learning_rate": budget.learning_rate,
        "precision": hardware.precision,
        "examples_per_second": session.examples_per_second(),
    }
    tokens = int(splits["train"].encoded.lengths.sum())
    return Outcome(rows=len(splits["train"].examples), tokens=tokens, summary=summary)


def starting_point(config: FinetuneConfig, build: Build) -> Start:
    """The checkpoint that the inputs name; with from_scratch its shape alone, or a preset's shape and a vocabulary."""
    path = build.inputs.get("pretrain")
    if path is not None:
        loaded = checkpoint.load(path)
        state = None if config.from_scratch else loaded.state
        return Start(
            model=_with_lstm(loaded.model, config.bilstm), state=state, tokenizer=loaded.tokenizer, dataset=loaded.dataset
        )
    if not config.from_scratch:
        raise UsageError("finetune needs a checkpoint (found none); name one that `cloze pretrain` made, or set from_scratch")
    vocabulary = build.inputs.get("vocab")
    if config.model is None or vocabulary is None:
        missing = "model" if config.model is None else "vocab"
        raise UsageError(
            f"finetune from scratch without a checkpoint needs {missing} (found none); name a preset and a vocabulary"
        )
    pieces = tokenizer.load(vocabulary)
    saved = storage.join(build.scratch, "tokenizer")
    pieces.save(saved)
    shape = model_config(config.model, vocab_size=pieces.vocab_size, pad_token_id=pieces.special.pad)
    return Start(model=_with_lstm(shape, config.bilstm), state=None, tokenizer=saved, dataset=None)


def _with_lstm(model: ModelConfig, wanted: bool) -> ModelConfig:
    if not wanted:
        return model
    if not isinstance(model, LtrConfig):
        raise UsageError(f"bilstm (true) is for left-to-right encoders, this one is {model.family}; leave it out")
    return model.model_copy(update={"bilstm": True})


class _Session:
    """The trainings of one stage: the wanted one and its baseline, with one progress and one history."""

    def __init__(
        self,
        config: FinetuneConfig,
        build: Build,
        task: Task,
        splits: Mapping[str, Split],
        budget: Budget,
        hardware: Hardware,
        runs: int,
    ) -> None:
        self.config, self.build, self.task, self.splits = config, build, task, splits
        self.budget, self.hardware = budget, hardware
        self.history: list[dict[str, Any]] = []
        self._steps = budget.steps(len(splits["train"].examples))
        self._total = runs * self._steps
        self._done = 0

    def run(
        self, name: str, shape: ModelConfig, state: Mapping[str, Tensor] | None
    ) -> tuple[SequenceClassifier, npt.NDArray[np.float32]]:
        """Train once; the model after the last epoch, and its probabilities on the dev split."""
        labels = len(self.splits["train"].examples.label_names)
        model = new_classifier(shape, state, labels, self.config.dropout, self.config.seed).to(self.hardware.device)
        before, figures = self._done, {"run": name}

        def on_step(step: int, loss: float) -> None:
            self.build.report.progress(before + step, self._total, "steps", {**figures, "loss": round(loss, 4)})

        probabilities = np.zeros((0, labels), dtype=np.float32)
        for end in train(model, self.splits["train"].encoded, self.budget, self.hardware, on_step):
            probabilities = predict(model, self.splits["dev"].encoded, self.hardware)
            scores = self.score(probabilities)
            self.history.append({**figures, **asdict(end), **scores})
            figures[self.task.metrics[0]] = f"{scores[self.task.metrics[0]]:.4f}"
        self._done = before + self._steps
        return model, probabilities

    def score(self, probabilities: npt.NDArray[np.float32]) -> dict[str, float]:
        """The task's metrics on the dev split."""
        labels = self.splits["dev"].encoded.labels
        if labels is None:
            raise DataError(f"{self.splits['dev'].examples.where} has no labels; give the dev split its labels")
        return score(self.task.metrics, labels, probabilities.argmax(axis=1))

    def examples_per_second(self) -> float:
        seconds: float = sum(line["seconds"] for line in self.history)
        return round(len(self.history) * len(self.splits["train"].examples) / max(seconds, 1e-9), 1)


def _count(build: Build, name: str, split: Split) -> None:
    build.counters[f"read/{name}"] += len(split.examples) + sum(split.examples.dropped.values())
    build.counters[f"kept/{name}"] += len(split.examples)
    build.counters[f"truncated/{name}"] += split.encoded.truncated
    for reason, number in split.examples.dropped.items():
        build.counters[f"dropped/{reason}"] += number


def write_json(path: str, content: Mapping[str, Any]) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())
