"""What the stage evaluate does, once torch is there: read the split again, predict, score."""

from __future__ import annotations

from typing import Any

from model import checkpoint
from model.tasks.evaluate.config import EvaluateConfig
from model.tasks.files import METRICS, write_json
from model.tasks.heads import trained_network
from model.tasks.kinds.together import one_of
from model.tasks.objective import TaskObjective
from model.tasks.predict import predict
from model.tasks.split import encoded
from model.tasks.table import load_task, merge_options
from model.tasks.task import task_source
from model.train.distributed import join
from model.train.precision import resolve
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build, Outcome

TOLD = ("task", "metric", "split", "examples", "metrics", "interval")  # of metrics.json, in the summary


def run(config: EvaluateConfig, build: Build) -> Outcome:
    """Score the checkpoint on one split; without labels, only predict.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or the task's data was not named.
        DataError: the checkpoint or the data is missing or damaged, or holds an answer that the model cannot give.
    """
    world = join(build.execution)
    precision = resolve(config.precision, world.device)
    path = build.inputs["checkpoint"]
    loaded = checkpoint.load_input(build, path)
    meaning = loaded.task
    if meaning is None:
        raise UsageError(f"{path} was pretrained, not fine-tuned (it names no task); run `cloze finetune` on it first")
    meaning, state = one_of(meaning, loaded.state, config.task, path)
    task = load_task(str(meaning["name"]), merge_options(meaning.get("options"), config.options))
    source = task_source(task, config.data, build.inputs.get("corpus"))
    read = task.read(source, config.split, meaning.get("limit_per_class"))
    split = encoded(task, read, meaning, tokenizer.load(loaded.tokenizer), int(meaning["max_length"]))
    examples, samples = split.examples, split.samples
    build.report.progress(0, len(examples), "examples", {})
    network = trained_network(task, loaded.model, state, meaning, loaded.path).to(world.device)
    answers = predict(TaskObjective(task, network, precision, world.device), samples, world)
    predictions = task.decode(answers, examples, samples)
    build.report.progress(len(examples), len(examples), "examples", {})
    task.write(build.path, examples, predictions)
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
            **task.details(examples, predictions, seed=config.seed, resamples=config.resamples),
            **task.baselines(examples),
            **task.facts(examples),
        }
    write_json(build.file(METRICS), {**content, "truncated": samples.truncated})
    build.counters.update({"read/examples": len(examples), "truncated/examples": samples.truncated})
    for reason, number in examples.dropped.items():
        build.counters[f"dropped/{reason}"] += number
    for reason, number in samples.lost.items():
        build.counters[f"lost/{config.split}/{reason}"] += number
    summary = {key: content[key] for key in TOLD if key in content}
    summary |= {"predictions": task.predictions, "precision": precision}
    return Outcome(rows=len(examples), tokens=int(samples.lengths.sum()), summary=summary)
