"""Evaluation of a fine-tuned checkpoint: read a split, predict, score."""

from __future__ import annotations

from typing import Any

from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.files import METRICS, write_json
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import task_source
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve

# Keys of metrics.json that the summary repeats.
SUMMARY = ("task", "metric", "split", "examples", "metrics", "interval")


def run(config: EvaluateConfig, build: BuildContext) -> StageResult:
    """Score the checkpoint on one split; without labels, only predict.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or the task's data is missing.
        DataError: checkpoint or data is missing or damaged, or has an answer that the model cannot
            give.
    """
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    model = FinetunedModel(
        build.inputs["checkpoint"],
        task=config.task,
        options=config.options,
        world=world,
        precision=precision,
    )
    task = model.task
    source = task_source(task, config.data, build.inputs.get("corpus"))
    split = model.encode(task.read(source, config.split, model.metadata.get("limit_per_class")))
    examples, samples = split.examples, split.samples
    build.report.progress(0, len(examples), "examples", {})
    predictions = model.predict(split)
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
    split.count_dropped(build, config.split)
    summary = {key: content[key] for key in SUMMARY if key in content}
    summary |= {"predictions": task.predictions, "precision": precision}
    return StageResult(rows=len(examples), tokens=int(samples.lengths.sum()), summary=summary)
