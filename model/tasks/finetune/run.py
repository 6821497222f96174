"""Fine-tuning: read the task, train, score the dev split, compare with baselines, save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.artifacts.artifact import is_artifact
from cloze.core.errors import UsageError
from cloze.core.stages.stage import CHECKPOINT, METRICS_LOG, BuildContext, Reporter, StageResult
from cloze.model import checkpoint
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.tasks.files import METRICS_FILE, NOTES, data_licence, write_json
from cloze.model.tasks.finetune.config import SPLITS, FinetuneConfig
from cloze.model.tasks.finetune.fit import FinetuneResult, FinetuneSetup, fit
from cloze.model.tasks.finetune.start import starting_point
from cloze.model.tasks.notes import split_notes
from cloze.model.tasks.table import CHECKS, KINDS, TASKS, kind_inputs, load_task
from cloze.model.tasks.task import Metrics, Task, check_labelled, encoded, task_source
from cloze.model.tasks.teacher import load_task_teacher
from cloze.model.train.distributed import StopRequest, World, init_distributed
from cloze.model.train.resume import state

SCRATCH = "from_scratch"
# Config fields in metrics.json.
RECIPE = (
    *("epochs", "global_batch", "optimizer", "layer_decay", "embedding_lr_multiplier"),
    *("warmup_share", "weight_decay", "grad_clip", "seed"),
)
UNUSUAL = (
    "auxiliary",
    "distill",
    "unfreeze_layers",
    "schedule",
    "decay_share",
)  # config fields in metrics.json if they are set


class _Part(Reporter):
    """Reporter of one of several trainings; adds the steps of the earlier ones."""

    def __init__(self, reporter: Reporter, name: str, before: int, total: int) -> None:
        self._reporter, self._name, self._before, self._total = reporter, name, before, total
        self.shutdown_time = reporter.shutdown_time  # type: ignore[method-assign]

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        run_label = {"run": self._name} if self._name else {}
        self._reporter.progress(self._before + done, self._total, unit, {**run_label, **figures})

    def metrics(self, values: Mapping[str, Any]) -> None:
        prefix = f"{self._name}_" if self._name else ""
        record = {
            name if name in ("step", "time") else prefix + name: value
            for name, value in values.items()
        }
        self._reporter.metrics({**record, "step": self._before + int(values["step"])})


def run(config: FinetuneConfig, build: BuildContext) -> StageResult:
    """Fine-tune on the task's train split and score its dev split, on this rank.

    Returns:
        The result on rank 0, an empty one on the others.

    Raises:
        StoppedError: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        UsageError: an input of the task is missing, or config and machine do not fit.
        DataError: checkpoint or data is missing or damaged.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    with StopRequest.installed() as stop:
        world = init_distributed(build.execution, build.path)
        if world.is_rank_zero:
            phase = {"step": "reading the task, building the model"}
            build.report.progress(0, None, "steps", phase)
        setup = prepare(config, build, world, stop)
        with_baseline = config.baselines and bool(setup.start.state)
        total = setup.steps * (2 if with_baseline else 1)
        main = fit(setup, setup.start.state, build.path, _Part(build.report, "", 0, total))
        tuned = setup.with_tuned_options(main.predictions)
        if world.is_rank_zero:
            with world.fence.locked():
                _save(tuned, main)
        metrics = score(tuned, main)
        if config.baselines:
            metrics |= setup.task.baselines(setup.dev.examples)
        if with_baseline:
            path = storage.join(build.scratch, SCRATCH)
            baseline = fit(setup, {}, path, _Part(build.report, SCRATCH, setup.steps, total))
            scores = score(setup.with_tuned_options(baseline.predictions), baseline)
            metrics[SCRATCH] = scores[setup.task.metrics[0]]
            if world.is_rank_zero:
                log = storage.read_text(storage.join(path, METRICS_LOG))
                storage.write_bytes(build.file(f"{SCRATCH}.jsonl"), log.encode())
        return _result(setup, main, metrics) if world.is_rank_zero else StageResult()


def check_inputs(task: Task[Any, Any], inputs: Mapping[str, str]) -> None:
    """Raise UsageError if an input is for tasks of another kind."""
    own = KINDS[TASKS[task.name].kind].inputs
    for role in sorted(kind_inputs().keys() & inputs.keys() - own.keys()):
        kinds = [name for name, kind in KINDS.items() if role in kind.inputs]
        raise UsageError(
            f"{role} ({inputs[role]}) is for {' and '.join(kinds)} tasks, not for {task.name}; "
            f"leave it out"
        )


def prepare(
    config: FinetuneConfig, build: BuildContext, world: World, stop: StopRequest
) -> FinetuneSetup:
    """Read the starting checkpoint, both splits and the teacher."""
    if config.distill is not None and "teacher" not in build.inputs:
        raise UsageError("distill needs a teacher (found none); name one with --teacher")
    if config.frozen is not None and "teacher" in build.inputs:
        raise UsageError(
            f"frozen ({config.frozen}) is for one network; leave it out, or the teacher"
        )
    task = load_task(config.task, config.given_options())
    check_inputs(task, build.inputs)
    source = task_source(task, config.some_data, build.inputs.get("corpus"))
    start, pieces = starting_point(config, build, world)
    examples = {name: task.read(source, name, config.limit_per_class) for name in SPLITS}
    for name in SPLITS:
        check_labelled(examples[name], name)
    if config.class_weights == "balanced":
        examples["train"] = task.balance_classes(examples["train"])
    metadata = {
        **task.metadata(examples["train"]),
        "name": task.name,
        "options": config.options,
        "limit_per_class": config.limit_per_class,
        **task.open(build, start, pieces, config.max_length),
    }
    if config.frozen is not None:
        sizes = {"lstm_size": config.lstm_size, "lstm_layers": config.lstm_layers}
        metadata["frozen"] = {"layers": config.frozen, **sizes}
    max_length = int(metadata["max_length"])
    splits = {
        name: encoded(task, own, metadata, pieces, max_length) for name, own in examples.items()
    }
    notes: list[str] = []
    if world.is_rank_zero:
        for name, split in splits.items():
            split.count(build, name)
        notes = [note for check in CHECKS.loaded().values() for note in check(*splits.values())]
        for note in notes:
            build.report.progress(0, None, "steps", {"note": note})
    path, teacher = build.inputs.get("teacher"), None
    if path is not None:
        options = config.distill or DistillOptions()
        teacher = load_task_teacher(path, options, task, metadata, pieces, build)
    return FinetuneSetup(
        config=config,
        build=build,
        world=world,
        stop=stop,
        task=task,
        start=start,
        metadata=metadata,
        teacher=teacher,
        notes=notes,
        **splits,
    )


def score(setup: FinetuneSetup, result: FinetuneResult) -> Metrics:
    """Return the task's metrics on the dev split."""
    return setup.task.score(setup.dev.examples, result.predictions)


def _save(setup: FinetuneSetup, result: FinetuneResult) -> None:
    """Write predictions and the final checkpoint, without state for resuming."""
    path = setup.build.file(CHECKPOINT)
    metadata: checkpoint.Metadata = {**setup.saved, "step": result.step}
    checkpoint.save_weights(path, state=result.weights, **metadata)
    checkpoint.finalize(path)
    setup.task.write_predictions(setup.build.path, setup.dev.examples, result.predictions)


def _result(setup: FinetuneSetup, main: FinetuneResult, metrics: Metrics) -> StageResult:
    """Write metrics.json and return the result; step checkpoints are temporary."""
    build, config, finished = setup.build, setup.config, main.finished
    fields = config.fingerprint_fields()
    splits = {"train": setup.train, "dev": setup.dev}
    statistics = {
        name: setup.task.dataset_statistics(split.examples) for name, split in splits.items()
    }
    common = {
        "task": setup.task.name,
        "metric": setup.task.metrics[0],
        "metrics": metrics,
        "examples": {name: len(split.examples) for name, split in splits.items()},
        **{
            statistic: {name: statistics[name][statistic] for name in splits}
            for statistic in statistics["train"]
        },
        NOTES: [
            *(note for name, split in splits.items() for note in split_notes(name, split)),
            *setup.notes,
        ],
    }
    content = {
        **common,
        "split": "dev",
        "truncated": {name: split.samples.truncated for name, split in splits.items()},
        "recipe": {name: getattr(config, name) for name in RECIPE}
        | {name: fields[name] for name in UNUSUAL if name in fields}
        | {"learning_rate": setup.learning_rate},
        "best": main.best,
    }
    write_json(build.file(METRICS_FILE), content)
    build.counters["steps/skipped"] += finished.progress.skipped
    build.counters["steps/applied"] += finished.progress.updates
    summary = {
        **common,
        "checkpoint": CHECKPOINT,
        "data_licences": [
            data_licence(path, options)
            for _, options, path in config.reads()
            if path and not is_artifact(path)  # whose corpus has a card
        ],
        "predictions": setup.task.predictions,
        "steps": finished.progress.step,
        "epochs": round(finished.progress.step / setup.steps_per_epoch, 4),
        "kept": main.step,
        "best": main.best,
        "learning_rate": setup.learning_rate,
        "precision": main.precision,
        "world_size": setup.world.size,
        **finished.session,
    }
    return StageResult(
        rows=len(setup.train.examples),
        tokens=int(setup.train.samples.lengths.sum()),
        summary=summary,
        temporary=(checkpoints.STEPS,),
        written=state.written_hashes(build.path, [CHECKPOINT]),
    )
