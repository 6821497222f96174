"""Predictions: TSV files, prediction on all ranks, fine-tuned checkpoints, and the dev split."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed

from cloze.core.errors import NotFiniteError, UsageError
from cloze.core.figures import check_figures
from cloze.core.ragged import I64
from cloze.model import checkpoint
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.data.batch import move, prefetch_batches
from cloze.model.families.models import attach
from cloze.model.layers.batch import Batch
from cloze.model.tasks.encode import CPU_POSITIONS, GPU_POSITIONS, evaluation_batches, groups_of
from cloze.model.tasks.heads import trained_network
from cloze.model.tasks.kinds.multitask import select_task, trained_options
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import TASKS, load_task, merge_options
from cloze.model.tasks.task import Examples, Member, Metrics, Samples, Split, encoded
from cloze.model.train.device_scalars import read_async
from cloze.model.train.distributed import World
from cloze.model.train.plan.estimates import FORWARD
from cloze.model.train.precision import Precision, place
from cloze.model.train.spec.interfaces import EvaluationInterrupted
from cloze.model.train.spec.schedules import ScheduleProgress
from cloze.pipeline import tokenizer

# Prediction of a split, on one or several ranks.


@torch.no_grad()
def predict(
    objective: TaskObjective,
    samples: Samples,
    world: World,
    stop_requested: Callable[[], bool] = lambda: False,
    select: Callable[[Any, Batch], Tensor | tuple[Tensor, ...]] | None = None,
) -> list[Any]:
    """Return the answers to all samples, in order, equal on all ranks.

    Args:
        objective: objective on `world.device`; its training mode is restored.
        stop_requested: function that returns True if this rank must stop; called before each batch.
        select: function that returns the answers of a batch. Default: the task's `select_outputs`.

    Raises:
        EvaluationInterrupted: a rank must stop.
        NotFiniteError: an answer is NaN throughout. The largest of NaN logits is class 0, so its
            accuracy would look like that of a model that works.
    """
    training, select = objective.training, select or objective.task.select_outputs
    lengths = samples.lengths
    positions = CPU_POSITIONS if world.device.type == "cpu" else GPU_POSITIONS
    batches = [
        group[indices]
        for group in groups_of(samples)
        for indices in evaluation_batches(lengths[group], positions)
    ]
    # Every rank runs the network equally often.
    numbers = range(world.rank, world.rank + len(batches), world.size)
    rank_batches = [batches[min(number, len(batches) - 1)] for number in numbers]
    rank_answers: list[tuple[int, Any]] = []
    is_nan = False

    def selected(prefetched: Iterable[Batch]) -> Iterator[tuple[I64, tuple[Tensor, ...]]]:
        for number, indices, batch in zip(numbers, rank_batches, prefetched, strict=True):
            if world.all_reduce_sum([int(stop_requested())])[0]:
                raise EvaluationInterrupted
            device_batch = move(batch, world.device)
            outputs = objective(device_batch)
            if number < len(batches):
                tensors = select(outputs, device_batch)
                yield indices, (tensors,) if isinstance(tensors, Tensor) else tensors

    objective.eval()
    try:
        with prefetch_batches(
            (samples.batch(indices, objective.layout) for indices in rank_batches), world.device
        ) as prefetched:
            for indices, arrays in read_async(selected(prefetched)):
                is_nan |= any(map(_has_nan_row, arrays))
                rows = zip(*arrays, strict=True) if len(arrays) > 1 else arrays[0]
                rank_answers += zip(indices.tolist(), rows, strict=True)
    finally:
        objective.train(training)
    by_rank = [(is_nan, rank_answers)]
    if world.size > 1:
        by_rank *= world.size
        distributed.all_gather_object(by_rank, (is_nan, rank_answers), group=world.control)
    check_figures(
        objective.task.name, {"output": math.nan if any(nan for nan, _ in by_rank) else 0}
    )
    answers = {number: answer for _, own in by_rank for number, answer in own}
    return [answers[number] for number in range(len(samples))]


def _has_nan_row(array: npt.NDArray[Any]) -> bool:
    """Return whether a row is NaN throughout; padding of a sound model may be NaN in places."""
    is_float = np.issubdtype(array.dtype, np.floating) and array.size
    return bool(is_float and np.isnan(array.reshape(len(array), -1)).all(axis=1).any())


def predict_split(
    objective: TaskObjective,
    split: Split,
    world: World,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Any:
    """Return the task's predictions for a split, as its `decode` gives them; see `predict`."""
    answers = predict(objective, split.samples, world, stop_requested)
    return objective.task.decode(answers, split.examples, split.samples)


TIMED_SEQUENCES, TIMING_SECONDS = 50, 2.0  # of `FinetunedModel.latencies`


class FinetunedModel:
    """Fine-tuned checkpoint of any task, in memory.

    Args:
        source: path of a checkpoint or of an artifact that contains one; or a loaded checkpoint
            with all its tasks.
        task: name of one of several tasks; None: the only one.
        options: task options that differ from those of the training, or from those of `test_on`.
        test_on: task of the same kind whose examples are predicted; None: the model's own.
        label_map: new names for labels of the model and the examples; equal names are one label.
        world: ranks and device. Default: this process and `device`.
        device: device of a single process. Default: the CPU.

    Attributes:
        task: task with the options of its training.
        metadata: task metadata from the checkpoint.
        network: network of the task: batches to outputs.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or on several tasks and none is named;
            `test_on` is of another kind, or the kind has no labels to map.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(
        self,
        source: str | LoadedCheckpoint,
        *,
        task: str | None = None,
        options: Mapping[str, Any] | None = None,
        test_on: str | None = None,
        label_map: Mapping[str, str] | None = None,
        world: World | None = None,
        device: torch.device | None = None,
        precision: Precision = "fp32",
    ) -> None:
        path = source if isinstance(source, str) else source.path
        with checkpoint.resolve_pinned(path) as directory:
            loaded = checkpoint.load(directory) if isinstance(source, str) else source
            self.tokenizer = tokenizer.load(loaded.tokenizer)
        if loaded.task is None:
            raise UsageError(
                f"{path} was pretrained, not fine-tuned (it names no task); run `cloze finetune` "
                f"on it first"
            )
        self._world = world or World(rank=0, size=1, device=device or torch.device("cpu"))
        self.metadata, state = loaded.task, loaded.state
        if isinstance(source, str):
            self.metadata, state = select_task(loaded.task, loaded.state, task, path)
        name = str(self.metadata["name"])
        if test_on in (None, name):
            own_options = merge_options(trained_options(self.metadata), options or {})
            self.task = load_task(name, own_options)
        else:
            self.task = load_task(str(test_on), options)
        kind = TASKS[name].kind
        if TASKS[self.task.name].kind != kind:
            raise UsageError(
                f"test_on ({test_on}) is a task of another kind than {name}, the task of {path}; "
                f"name one of the kind {kind}"
            )
        if label_map:
            if kind != "classification":
                raise UsageError(
                    f"label_map means nothing to task {name}, whose kind is {kind}; leave it out"
                )
            self.metadata = {**self.metadata, "label_map": label_map}
        network = trained_network(self.task, loaded.model, state, self.metadata, loaded.path)
        attach(network, self.tokenizer, path, self.metadata)
        self.device = self._world.device
        self.network = place(network, self.device, precision)
        self.objective = TaskObjective(self.task, self.network, precision, self.device)
        self.truncated = 0
        self.parameters = sum(parameter.numel() for parameter in network.parameters())

    def encode(self, examples: Examples) -> Split:
        """Encode examples for the network; count the truncated ones."""
        split = encoded(
            self.task, examples, self.metadata, self.tokenizer, int(self.metadata["max_length"])
        )
        self.truncated += split.samples.truncated
        return split

    def predict(self, split: Split) -> Any:
        """Return the task's predictions for encoded examples."""
        return predict_split(self.objective, split, self._world)

    @torch.no_grad()
    def latencies(self, split: Split) -> list[float]:
        """Time sequences of a split one at a time, from token ids to the answer on the host.

        Every sequence first runs once without being timed, because a CPU builds a kernel for each
        new length. Both passes together take about `TIMING_SECONDS`.

        Returns:
            Seconds of each timed sequence, at most `TIMED_SEQUENCES`, spread over the split.
        """
        samples, objective = split.samples, self.objective
        objective.eval()

        def run(index: int) -> float:
            begin = time.perf_counter()
            batch = samples.batch(np.array([index]), objective.layout)
            device_batch = move(batch, self.device)
            outputs = objective.task.select_outputs(objective(device_batch), device_batch)
            for tensor in (outputs,) if isinstance(outputs, Tensor) else outputs:
                tensor.cpu()
            return time.perf_counter() - begin

        count = min(TIMED_SEQUENCES, len(samples))
        indices = np.linspace(0, len(samples) - 1, count).astype(int).tolist()
        spent, warm = 0.0, list[int]()
        for index in indices:
            if spent > TIMING_SECONDS / 2 and len(warm) >= 3:
                break
            spent += run(index)
            warm.append(index)
        return [run(index) for index in warm]

    def member(self, examples: Examples) -> Member:
        """Return this model's outputs for examples, as a member of an ensemble."""
        samples, select = self.encode(examples).samples, self.task.member_outputs
        answers = predict(self.objective, samples, self._world, select=select)
        return Member(answers=answers, samples=samples)

    def outputs(self, split: Split) -> npt.NDArray[np.float32]:
        """Return the network's outputs for encoded examples, such as logits [n, labels]."""
        kept = predict(
            self.objective, split.samples, self._world, select=lambda outputs, batch: outputs
        )
        return np.array(kept, dtype=np.float32)


def predict_ensemble(
    first: FinetunedModel, others: Iterable[FinetunedModel], examples: Examples
) -> Any:
    """Return the predictions of an ensemble; see `Task.combine`.

    The models may differ in vocabulary if the task's predictions are per example or per word. They
    are decoded with the options of the first one, such as its `null_threshold`.

    Args:
        others: the other models; each one is released before the next one is loaded.

    Raises:
        UsageError: a model has another task or other labels than the first.
    """
    members = [first.member(examples)]
    for model in others:
        for key in ("name", "labels"):
            own, expected = model.metadata.get(key), first.metadata.get(key)
            if own != expected:
                raise UsageError(
                    f"checkpoint names models with the {key} {expected} and {own}, whose outputs "
                    f"have no common mean; name models that were fine-tuned on one task and labels"
                )
        members.append(model.member(examples))
    aligned = first.task.align_labels(examples, first.metadata)
    return first.task.combine(members, aligned)


# Evaluation on the dev split, during and after training.

BUDGET = 0.05  # maximum share of the training time for evaluations
FEW = 1024  # samples that are always evaluated at every epoch: it takes seconds


class DevEvaluator:
    """Evaluator of the dev split (`cloze.model.train.spec.interfaces.Evaluator`).

    Due at the end of every epoch, or of every n-th if the dev split is large relative to the train
    split and the scores decide nothing.
    """

    def __init__(
        self,
        objective: TaskObjective,
        train: Split,
        dev: Split,
        world: World,
        epoch: int,
        decides: bool = False,
    ) -> None:
        """Set up evaluation: `epoch` is the number of steps per epoch, `decides` true if scores
        select the checkpoint or end the training.
        """
        self._objective, self._dev, self._world = objective, dev, world
        self.best_metric = f"dev_{objective.task.metrics[0]}"
        share = FORWARD * float(dev.samples.lengths.sum()) / float(train.samples.lengths.sum())
        every_epoch = decides or len(dev.samples) <= FEW
        self._every = epoch * (1 if every_epoch else max(1, math.ceil(share / BUDGET)))
        self._newest: tuple[int, Any] | None = None

    def should_evaluate(self, step: int, schedule_progress: ScheduleProgress) -> bool:
        return step % self._every == 0

    def __call__(
        self, step: int, schedule_progress: ScheduleProgress, stop_requested: Callable[[], bool]
    ) -> Metrics:
        try:
            predictions = predict_split(self._objective, self._dev, self._world, stop_requested)
        except NotFiniteError:  # never the best; the training goes on, and may recover
            return {self.best_metric: math.nan}
        self._newest = step, predictions
        scores = self._objective.task.score(self._dev.examples, predictions)
        return {f"dev_{name}": value for name, value in scores.items()}

    def predictions(self, step: int) -> Any:
        """Return the predictions after step `step`, the last one done; every rank calls it."""
        if self._newest is None or self._newest[0] != step:  # a resumed training had no more steps
            return predict_split(self._objective, self._dev, self._world)
        return self._newest[1]
