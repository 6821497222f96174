"""Evaluation of a fine-tuned checkpoint, or of an ensemble: read a split, predict, score."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cloze.core.processes import peak_memory
from cloze.core.stages.stage import BuildContext, StageResult, inputs_of_role
from cloze.model import hardware
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.tasks.files import METRICS_FILE, NOTES, write_json
from cloze.model.tasks.notes import split_notes
from cloze.model.tasks.predict import FinetunedModel, predict_ensemble
from cloze.model.tasks.task import check_not_empty, task_source
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve

# Keys of metrics.json that the summary repeats.
SUMMARY = ("task", "metric", "split", "examples", "metrics", "interval", NOTES)


def run(config: EvaluateConfig, build: BuildContext) -> StageResult:
    """Score the checkpoint on one split; without labels, only predict.

    Several checkpoints are an ensemble: see `Task.combine`.

    Raises:
        UsageError: a checkpoint was not fine-tuned, the task's data is missing, or several
            checkpoints differ in task or labels.
        DataError: checkpoint or data is missing or damaged, or the data has no examples or an
            answer that the model cannot give.
    """
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    paths = inputs_of_role("checkpoint", build.inputs)
    models = (
        FinetunedModel(
            path,
            task=config.task,
            options=config.options,
            test_on=config.test_on,
            label_map=config.label_map,
            world=world,
            precision=precision,
        )
        for path in paths.values()
    )
    model = next(models)
    task = model.task
    source = task_source(task, config.data, build.inputs.get("corpus"))
    read = task.read(source, config.split, model.metadata.get("limit_per_class"))
    check_not_empty(read, config.split)
    split = model.encode(read)
    examples, samples = split.examples, split.samples
    build.report.progress(0, len(examples), "examples", {})
    latencies = model.latencies(split) if len(paths) == 1 else []
    begin = time.perf_counter()
    if len(paths) == 1:
        predictions = model.predict(split)
    else:
        predictions = predict_ensemble(model, models, examples)
    speed = len(examples) / (time.perf_counter() - begin)
    build.report.progress(len(examples), len(examples), "examples", {})
    task.write_predictions(build.path, examples, predictions)
    content: dict[str, Any] = {
        "task": task.name,
        "metric": task.metrics[0],
        "split": config.split,
        "examples": len(examples),
        "metrics": {},
        NOTES: split_notes(config.split, split),
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
    write_json(build.file(METRICS_FILE), {**content, "truncated": samples.truncated})
    build.counters.update({"read/examples": len(examples), "truncated/examples": samples.truncated})
    split.count_dropped(build, config.split)
    summary = {key: content[key] for key in SUMMARY if key in content}
    summary |= {"predictions": task.predictions, "precision": precision}
    if len(paths) == 1:
        summary["inference"] = {
            "parameters": model.parameters,
            **inference_cost(latencies, speed, world.device),
            "precision": precision,
        }
    else:
        summary["members"] = list(paths)
    if config.test_on is not None:
        summary["trained_on"] = model.metadata["name"]
    return StageResult(rows=len(examples), tokens=int(samples.lengths.sum()), summary=summary)


def inference_cost(
    latencies: Sequence[float], speed: float, device: torch.device
) -> dict[str, Any]:
    """Return latency, speed and memory, with the device that they hold for.

    Args:
        latencies: seconds of sequences that ran one at a time.
        speed: examples per second of the whole split in batches.

    Returns:
        `latency_ms`, the median, and `latency_p99_ms` of `latency_sequences` sequences;
        `examples_per_second`; `memory_bytes`, the process's peak; `gpu_memory_bytes`, a GPU's peak;
        `device`, `device_name` and `threads`.
    """
    median, high = np.quantile(latencies, [0.5, 0.99]).tolist() if latencies else (None, None)
    on_gpu = device.type == "cuda"
    cpu = hardware.cpu_info().get("model name", "")
    return {
        "latency_ms": median and round(1e3 * median, 3),
        "latency_p99_ms": high and round(1e3 * high, 3),
        "latency_sequences": len(latencies),
        "examples_per_second": round(speed, 1),
        "memory_bytes": peak_memory(),
        **({"gpu_memory_bytes": torch.cuda.max_memory_allocated(device)} if on_gpu else {}),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_gpu else cpu,
        "threads": torch.get_num_threads(),
    }
