"""What the stage evaluate does, once torch is there: read the split again, predict, score."""

from __future__ import annotations

from typing import Any

from model import checkpoint
from model.tasks.encode import encode
from model.tasks.evaluate_config import EvaluateConfig
from model.tasks.finetune import METRICS, write_json
from model.tasks.heads import trained_classifier
from model.tasks.metrics import bootstrap_interval, confusion_matrix, score
from model.tasks.predictions import FILE as PREDICTIONS
from model.tasks.predictions import write_predictions
from model.tasks.table import load_task, task_source
from model.tasks.training import Classification, predict
from model.train.distributed import join
from model.train.precision import resolve
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build, Outcome


def evaluate(config: EvaluateConfig, build: Build) -> Outcome:
    """Score the checkpoint on one split; without labels, only predict.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or the task's data was not named.
        DataError: the checkpoint or the data is missing or damaged, or holds a label that the model does not know.
    """
    world = join(build.execution)
    precision = resolve(config.precision, world.device)
    path = build.inputs["finetune"]
    loaded = checkpoint.load(path)
    if loaded.task is None:
        raise UsageError(f"{path} was pretrained, not fine-tuned (it names no task); run `cloze finetune` on it first")
    task, names = load_task(str(loaded.task["name"])), [str(name) for name in loaded.task["labels"]]
    source = task_source(task, config.data, build.inputs.get("corpus"))
    examples = task.read(source, config.split, loaded.task.get("limit_per_class")).relabelled(names)
    encoded = encode(examples, tokenizer.load(loaded.tokenizer), int(loaded.task["max_length"]))
    build.report.progress(0, len(examples), "examples", {})
    model = trained_classifier(loaded.model, loaded.state, len(names), loaded.path).to(world.device)
    probabilities = predict(Classification(model, precision), encoded, world)
    build.report.progress(len(examples), len(examples), "examples", {})
    write_predictions(build.file(PREDICTIONS), examples, probabilities)
    content: dict[str, Any] = {"task": task.name, "split": config.split, "examples": len(examples), "metrics": {}}
    if encoded.labels is not None:
        best = probabilities.argmax(axis=1)
        content |= {
            "metrics": score(task.metrics, encoded.labels, best),
            "interval": {"accuracy": list(bootstrap_interval(encoded.labels == best, config.seed, config.resamples))},
            "majority": examples.majority_share(),
            "classes": examples.class_counts(),
            "confusion": {"labels": names, "rows_true": confusion_matrix(encoded.labels, best, len(names)).tolist()},
        }
    write_json(build.file(METRICS), {**content, "truncated": encoded.truncated})
    build.counters.update({"read/examples": len(examples), "truncated/examples": encoded.truncated})
    for reason, number in examples.dropped.items():
        build.counters[f"dropped/{reason}"] += number
    told: tuple[str, ...] = ("task", "split", "examples", "metrics", "interval")
    summary = {key: content[key] for key in told if key in content}
    summary |= {"predictions": PREDICTIONS, "precision": precision}
    return Outcome(rows=len(examples), tokens=int(encoded.lengths.sum()), summary=summary)
