"""Evaluation of a fine-tuned checkpoint: read a split, predict, score."""

from __future__ import annotations

from typing import Any

from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model import checkpoint
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.files import METRICS, write_json
from cloze.model.tasks.heads import trained_network
from cloze.model.tasks.kinds.multitask import select_task
from cloze.model.tasks.predict import predict
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import load_task, merge_options
from cloze.model.tasks.task import encoded, task_source
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve
from cloze.pipeline import tokenizer

# Keys of metrics.json that the summary repeats.
TOLD = (
    "task",
    "metric",
    "split",
    "examples",
    "metrics",
    "interval",
)


def run(config: EvaluateConfig, build: BuildContext) -> StageResult:
    """Score the checkpoint on one split; without labels, only predict.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or the task's data is missing.
        DataError: checkpoint or data is missing or damaged, or has an answer that the model cannot
            give.
    """
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    path = build.inputs["checkpoint"]
    loaded = checkpoint.load_input(build, path)
    meaning = loaded.task
    if meaning is None:
        raise UsageError(
            f"{path} was pretrained, not fine-tuned (it names no task); run `cloze finetune` on it "
            f"first"
        )
    meaning, state = select_task(meaning, loaded.state, config.task, path)
    task = load_task(str(meaning["name"]), merge_options(meaning.get("options"), config.options))
    source = task_source(task, config.data, build.inputs.get("corpus"))
    raw_examples = task.read(source, config.split, meaning.get("limit_per_class"))
    split = encoded(
        task, raw_examples, meaning, tokenizer.load(loaded.tokenizer), int(meaning["max_length"])
    )
    examples, samples = split.examples, split.samples
    build.report.progress(0, len(examples), "examples", {})
    network = trained_network(task, loaded.model, state, meaning, loaded.path).to(world.device)
    answers = predict(TaskObjective(task, network, precision, world.device), samples, world)
    predictions = task.decode(answers, examples, samples)
    build.report.progress(len(examples), len(examples), "examples", {})
    task.write_predictions(build.path, examples, predictions)
    content: dict[str, Any] = {
        "task": task.name,
        "metric": task.metrics[0],
        "split": config.split,
        "examples": len(examples),
        "metrics": {},
    }
    if examples.labelled:
        content |= {
            "metrics": task.score(examples, predictions),
            **task.detailed_metrics(
                examples, predictions, seed=config.seed, resamples=config.resamples
            ),
            **task.baselines(examples),
            **task.dataset_statistics(examples),
        }
    write_json(build.file(METRICS), {**content, "truncated": samples.truncated})
    build.counters.update({"read/examples": len(examples), "truncated/examples": samples.truncated})
    for reason, number in examples.dropped.items():
        build.counters[f"dropped/{reason}"] += number
    for reason, number in samples.dropped_counts.items():
        build.counters[f"lost/{config.split}/{reason}"] += number
    summary = {key: content[key] for key in TOLD if key in content}
    summary |= {"predictions": task.predictions, "precision": precision}
    return StageResult(rows=len(examples), tokens=int(samples.lengths.sum()), summary=summary)
